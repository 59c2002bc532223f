"""Runs orders in local processes; a process that is killed is restarted and resumes its run."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankprune.lab.errors import Interrupted
from rankprune.lab.training.callbacks import Callback

from .runner import RETRIES, Done, Order, Reply, Source

_STOP = (signal.SIGINT, signal.SIGTERM)


@dataclass
class _Worker:
    """A process that trains one order."""

    order: Order
    process: subprocess.Popen[str]
    attempt: int = 0
    reply: Reply | None = None  # None until it sends one; a killed process never does


class LocalRunner:
    """Runs orders in up to `jobs` local processes at a time.

    Args:
        callback: Receives the progress of a single process step by step; of several processes, only messages.
        jobs: Number of processes.
    """

    def __init__(self, callback: Callback | None = None, jobs: int = 1) -> None:
        self.callback, self.jobs = callback or Callback(), jobs
        self._workers: list[_Worker] = []
        # What happened, in order: (worker, event, values); (None, "signal", [number]).
        self._events: queue.SimpleQueue[tuple[_Worker | None, str, list[Any]]] = queue.SimpleQueue()
        self._stopped: int | None = None  # the signal that asked to stop; 0 if the time was up

    def run(self, source: Source, done: Done, seconds: float | None = None) -> bool:
        """See `Runner.run`.

        Args:
            source: Returns the next order.
            done: Called with each order that ended.
            seconds: Stop after this time; None for no limit.

        Returns:
            True if no orders were left, False if the time was up.

        Raises:
            Interrupted: A signal asked to stop; the active runs have been saved.
        """
        until = None if seconds is None else time.monotonic() + seconds
        handlers = self._catch_signals()
        try:
            while True:
                self._start_more(source, until)
                if not self._workers:
                    break
                self._next_event(done, until)
        except BaseException:
            self._terminate()
            for worker in self._workers:
                worker.process.wait()
            raise
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self._stopped:
            raise Interrupted("Stopped; the runs that were training are saved.", self._stopped)
        return self._stopped is None

    def _catch_signals(self) -> dict[int, Any]:
        """Let the first signal ask the workers to save and stop; a second one has its usual effect."""
        if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
            return {}
        before: dict[int, Any] = {number: signal.getsignal(number) for number in _STOP}

        def catch(signum: int, frame: Any) -> None:
            self._events.put((None, "signal", [signum]))
            for number, handler in before.items():
                signal.signal(number, handler)

        for number in _STOP:
            signal.signal(number, catch)
        return before

    def _start_more(self, source: Source, until: float | None) -> None:
        while self._stopped is None and len(self._workers) < self.jobs:
            if until is not None and time.monotonic() >= until:
                self._stop(0)
                return
            order = source(not self._workers)
            if order is None:
                return
            self._start(order)

    def _start(self, order: Order, attempt: int = 0) -> None:
        environment = dict(os.environ)
        if self.jobs > 1:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.jobs)))
        # A new session, so that Ctrl-C reaches only this process, which then asks each worker once.
        process = subprocess.Popen(
            [sys.executable, "-m", "rankprune.lab.sweep.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", env=environment, start_new_session=True,
        )  # fmt: skip
        worker = _Worker(order, process, attempt)
        self._workers.append(worker)
        threading.Thread(target=self._converse, args=(worker,), daemon=True).start()

    def _converse(self, worker: _Worker) -> None:
        """Send the order, and put the process's messages into the queue of events."""
        stdin, stdout = worker.process.stdin, worker.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            with stdin:
                json.dump(worker.order.to_dict(), stdin)
        except BrokenPipeError:
            pass  # the process died before it read its order
        with stdout:
            for line in stdout:
                if (message := _parse_event(line)) is not None:
                    self._events.put((worker, message[0], message[1:]))
        worker.process.wait()
        self._events.put((worker, "exit", []))

    def _next_event(self, done: Done, until: float | None) -> None:
        wait = None if until is None or self._stopped is not None else max(until - time.monotonic(), 0)
        try:
            worker, event, values = self._events.get(timeout=wait)
        except queue.Empty:
            self._stop(0)
            return
        if worker is None:
            self._stop(values[0])
        elif event == "done":
            worker.reply = Reply.from_dict(values[0])
        elif event == "exit":
            self._end(worker, done)
        else:
            self._pass_on(worker.order, event, values)

    def _end(self, worker: _Worker, done: Done) -> None:
        self._workers.remove(worker)
        reply = worker.reply
        if self._stopped is not None and (reply is None or reply.result is None):
            return  # it was saved and will be resumed next time
        # A run that was stopped by someone else's SIGTERM counts as killed, even if it could save.
        killed = reply is None or reply.code == 128 + signal.SIGTERM
        if killed and worker.attempt < RETRIES:
            attempt = worker.attempt + 1
            why = _why(worker.process.returncode)
            self.callback.message(f"{worker.order.name} was killed ({why}) and is restarted, attempt {attempt + 1}.")
            self._start(worker.order, attempt)
            return
        if killed:
            why = _why(worker.process.returncode)
            reply = Reply(failure=f"it was killed {RETRIES + 1} times, the last time by {why}", code=1)
        assert reply is not None
        done(worker.order, reply)

    def _stop(self, signum: int) -> None:
        if self._stopped is None:
            self._stopped = signum
            self._terminate()

    def _terminate(self) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.terminate()  # the worker saves its run and exits

    def _pass_on(self, order: Order, event: str, values: list[Any]) -> None:
        if event == "message":
            self.callback.message(*values)
        elif self.jobs == 1 and event == "begin":
            self.callback.begin(order.recipe, Path(values[0]), *values[1:])
        elif self.jobs == 1 and event == "step":
            self.callback.step(values[0], lambda: values[1])
        elif self.jobs == 1 and event == "epoch":
            self.callback.epoch(*values)
        elif self.jobs == 1 and event == "end":
            self.callback.end()


def _parse_event(line: str) -> list[Any] | None:
    """An event of a worker; None for half a line, left by a process that died, and for what its libraries print."""
    try:
        message = json.loads(line) if line.endswith("\n") else None
    except ValueError:
        return None
    return message if isinstance(message, list) and message and isinstance(message[0], str) else None


def _why(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
