"""The runs of a sweep in processes of this machine; one that is killed is started again and resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock
from typing import Any

from rankprune.lab.errors import Interrupted
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.training.watch import Watcher

from .trial import order_of

RETRIES = 3  # of a run that something kills


class LocalTrials:
    """`jobs` at a time. A single one is watched step by step; of several only their messages are passed on."""

    def __init__(self, out: str | Path, watcher: Watcher, jobs: int = 1) -> None:
        self.out, self.watcher, self.jobs = out, watcher, jobs
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped, self._lock = Event(), Lock()

    def run(self, recipes: Sequence[Recipe]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(self._trial, recipe) for recipe in recipes]
            try:
                return [future.result() for future in futures]
            except BaseException as error:
                self._stop()
                pool.shutdown(cancel_futures=True)
                if isinstance(error, KeyboardInterrupt):
                    text = "The sweep was stopped and its runs saved: the same command goes on from there."
                    raise Interrupted(text, signal.SIGINT) from None
                raise

    def _stop(self) -> None:
        self._stopped.set()
        with self._lock:
            for process in self._running:
                process.terminate()  # it saves first

    def _trial(self, recipe: Recipe) -> dict[str, Any]:
        name = f"{recipe.name} (seed {recipe.seed})"
        code = 0
        for attempt in range(RETRIES + 1):
            if attempt:
                self.watcher.message(f"{name} was killed ({_why(code)}) and goes on, attempt {attempt + 1}.")
            code, done = self._process(recipe)
            # Stopped by a signal that did not come from us counts as killed, whether or not it could still save.
            killed = done is None or done.get("code") == 128 + signal.SIGTERM
            if self._stopped.is_set() or not killed:
                break
        return done or {"failure": f"it was killed {RETRIES + 1} times, at last by {_why(code)}", "code": 1}

    def _process(self, recipe: Recipe) -> tuple[int, dict[str, Any] | None]:
        """The exit code and the last word of one process; None where it was not allowed one."""
        environment = dict(os.environ)
        if self.jobs > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        with self._lock:
            if self._stopped.is_set():
                return 0, {"failure": "it was not started", "code": 1}
            # A session of its own: Ctrl-C reaches us alone, and we ask once.
            process = subprocess.Popen(
                [sys.executable, "-m", "rankprune.lab.sweep.trial"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, encoding="utf-8", env=environment, start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        done = None
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            with process.stdin:
                json.dump(order_of(recipe, self.out), process.stdin)
            for line in process.stdout:
                if line.endswith("\n"):  # a process that dies may leave half a line
                    event, *values = json.loads(line)
                    done = values[0] if event == "done" else done
                    self._pass_on(recipe, event, values)
        except BrokenPipeError:
            pass  # it died before it had read its order
        finally:
            code = process.wait()
            if process.stdout is not None:
                process.stdout.close()
            with self._lock:
                self._running.discard(process)
        return code, done

    def _pass_on(self, recipe: Recipe, event: str, values: list[Any]) -> None:
        if event == "begin" and self.jobs == 1:
            self.watcher.begin(recipe, Path(values[0]), *values[1:])
        elif event == "message" or (event in ("step", "epoch", "end") and self.jobs == 1):
            getattr(self.watcher, event)(*values)


def _why(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
