"""Processes that run `rankprune train`: forked from one that has imported everything, so that each starts at once."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


class Process:
    def __init__(self, server: Server, pid: int, log: Path) -> None:
        self.server, self.pid, self.log = server, pid, log

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def wait(self, timeout: float = 120) -> int:
        """Its exit code, negative for a signal; one that hangs is killed and fails the test."""
        code = self.server.ask({"wait": self.pid, "timeout": timeout})
        assert code is not None, f"process {self.pid} still ran after {timeout} s: {self.said}"
        return int(code)

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def sentence(self) -> str:
        """The one line that is the command's own, besides warnings."""
        lines = [line for line in self.said.splitlines() if line.startswith("rankprune: ")]
        lines = [line for line in lines if not line.startswith("rankprune: warning: ")]
        assert len(lines) == 1, self.said
        assert "Traceback" not in self.said
        return lines[0]


class Server:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(
        self,
        recipe: list[str],
        out: Path,
        world: int = 1,
        trouble: dict[str, Any] | None = None,
        logs_in: Path | None = None,
        **env: str,
    ) -> list[Process]:
        """`rankprune train RECIPE --resume` in `world` processes, as torchrun would start them.

        `trouble` is `{"rank": 1, "at": 7, "kind": ...}`: see `_Troubled`.
        """
        place = logs_in or out
        place.mkdir(parents=True, exist_ok=True)
        logs = [place / f"log-{time.monotonic_ns()}-{rank}" for rank in range(world)]
        argv = ["train", *recipe, "--resume", "--out", str(out)]
        job = {"argv": argv, "logs": [str(log) for log in logs], "port": free_port(), "trouble": trouble, "env": env}
        return [Process(self, pid, log) for pid, log in zip(self.ask(job), logs)]

    def run(self, recipe: list[str], out: Path, world: int = 1, **env: str) -> None:
        """From where it is to the end."""
        processes = self.start(recipe, out, world, **env)
        assert [p.wait() for p in processes] == [0] * world, [p.said for p in processes]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- the other side --------------------------------------------------------------------------------------------------


class _Troubled:
    """Makes trouble when the `at`-th batch is asked for, on one rank, or on the `at`-th call of a system function."""

    def __init__(self, rank: int, at: int, kind: str) -> None:
        self.rank, self.at, self.kind, self.count = rank, at, kind, 0

    def install(self) -> None:
        from rankprune.lab.training import run

        if self.kind in ("fsync", "replace", "link"):  # killed in the midst of a save
            function = getattr(os, self.kind)

            def counted(*args: Any, **kwargs: Any) -> Any:
                self.count += 1
                if self.count == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            setattr(os, self.kind, counted)
            return
        build = run.build

        def troubled(*args: Any) -> Any:
            task = build(*args)
            batches = task.data.train

            def train(epoch: int, start_batch: int = 0) -> Any:
                for images, labels in batches(epoch, start_batch):
                    self.count += 1
                    yield self.make(task, images) if self.count == self.at else images, labels

            task.data = _copy(task.data)
            task.data.train = train
            return task

        run.build = troubled

    def make(self, task: Any, images: Any) -> Any:
        import resource

        signals = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "term": signal.SIGTERM, "int": signal.SIGINT}
        if self.kind in signals:
            os.kill(os.getpid(), signals[self.kind])
        elif self.kind == "data":
            raise ValueError("image 17 is no image: remove it.")
        elif self.kind == "nan":
            return images * float("nan")
        elif self.kind == "forward":
            task.forward = lambda images: images.nonsense
        elif self.kind == "mask":
            mask = task.sparsifier.layers[0].mask.view(-1)
            mask[0] = ~mask[0]
        elif self.kind == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        elif self.kind.startswith("sh "):  # a command
            subprocess.run(self.kind[3:], shell=True, check=True)
        return images


def _copy(data: Any) -> Any:
    import copy

    return copy.copy(data)


def _child(job: dict[str, Any], rank: int) -> int:
    log = os.open(job["logs"][rank], os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    world = len(job["logs"])
    if world > 1:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
        os.environ.update(meeting, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    os.environ.update(job["env"])
    if job["trouble"] and job["trouble"]["rank"] == rank:
        _Troubled(**job["trouble"]).install()
    from rankprune.cli import main

    return main(job["argv"])


def _wait(pid: int, timeout: float) -> int | None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _serve() -> int:
    sys.path.insert(0, str(HERE.parents[2]))
    import torch

    import _runs  # noqa: F401  (registers the tests' models)
    import rankprune.cli.train  # noqa: F401
    from rankprune.core.method import list_methods
    from rankprune.lab.data import load

    # What a run imports and unpacks when it gets there, done once.
    list_methods()
    images = load.read_fashion()
    load.read_fashion = lambda: images
    for module in ("torch.distributed.fsdp", "torch.distributed.tensor", "torch.utils.tensorboard", "timm.utils"):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    torch.set_num_threads(1)
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            answer: Any = _wait(question["wait"], question["timeout"])
        else:
            answer = []
            for rank in range(len(question["logs"])):
                pid = os.fork()
                if not pid:
                    return _child(question, rank)
                answer.append(pid)
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(_serve())
