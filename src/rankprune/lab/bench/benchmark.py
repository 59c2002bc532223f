"""Latency and throughput of the engine beside others, in turns, outputs compared."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankprune.engine.backend.engine import thread_count
from rankprune.engine.compile import Compiled, compile
from rankprune.engine.program import torch_threads
from rankprune.lab.progress import Say, Steps, silent

from .peers import PEERS, Absent, Run, joined, timed

ROUNDS = 15


@dataclass(frozen=True)
class Row:
    """Seconds that one engine takes for a batch, over all rounds.

    Attributes:
        name: Of the engine.
        minimum: The shortest round.
        median: The middle round.
        low: A tenth of the rounds are shorter.
        high: A tenth of the rounds are longer.
        images_per_second: By the median.
        error: Largest difference from torch's output, as a share of the output's scale
            (1 where that is 0).
    """

    name: str
    minimum: float
    median: float
    low: float
    high: float
    images_per_second: float
    error: float


@dataclass(frozen=True)
class Benchmark:
    """All engines, and those left out with the reason."""

    rows: tuple[Row, ...]
    absent: dict[str, str]
    threads: int
    batch: int
    rounds: int
    compiled: str
    cpus: tuple[int, ...] = ()  # that all engines were pinned to; none where the system cannot

    def ratio(self, name: str, by: str = "median") -> float:
        """How many times faster the engine is than another, by medians or by minima ("minimum")."""
        found = {row.name: getattr(row, by) for row in self.rows}
        return float(found[name] / found["rankprune"])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        where = f"pinned to CPUs {', '.join(map(str, self.cpus))}" if self.cpus else "not pinned"
        lines = [f"batch {self.batch}, {self.threads} threads, {where}, {self.rounds} rounds in turns; {self.compiled}"]
        heads = ("min ms", "median ms", "images/s", "by min", "by median", "error")
        lines.append(f"{'engine':<16} " + " ".join(f"{head:>9}" for head in heads) + "  10-90 % of the rounds, ms")
        for row in self.rows:
            times = f"{row.minimum * 1e3:>9.2f} {row.median * 1e3:>9.2f} {row.images_per_second:>9.1f}"
            ratios = f"{self.ratio(row.name, 'minimum'):>9.2f} {self.ratio(row.name):>9.2f}"
            spread = f"{row.low * 1e3:.3g} - {row.high * 1e3:.3g}"
            lines.append(f"{row.name:<16} {times} {ratios} {row.error:>9.1e}  {spread}")
        return "\n".join([*lines, *(f"{name} is left out: {why}" for name, why in self.absent.items())])


def benchmark(
    model: nn.Module,
    example: Tensor,
    against: Sequence[str] = ("torch", "onnxruntime"),
    threads: int | None = None,
    deepsparse_env: str | None = None,
    rounds: int = ROUNDS,
    say: Say = silent,
) -> Benchmark:
    """Time a model on the sparse engine and on other engines, one run each per round, and compare the outputs.

    Args:
        model: The model; it is put into evaluation mode.
        example: An input of the batch size to time.
        against: Names of other engines, out of `PEERS`.
        threads: Of every engine; the cores this process may use by default.
        deepsparse_env: A virtual environment that has deepsparse.
        rounds: How often each is timed.
        say: Receives sentences about progress.

    Returns:
        A row for each engine, and the engines that are absent with the reason.

    Raises:
        ValueError: There is no such engine, or the model cannot be compiled for the example.
    """
    if unknown := [name for name in against if name not in PEERS]:
        raise ValueError(f"there is no engine {unknown[0]} to compare with: choose among {', '.join(PEERS)}")
    threads = thread_count(threads)
    check_runs(model.eval(), example)
    with torch_threads(threads), pinned(threads) as cpus, tempfile.TemporaryDirectory() as folder:
        found = _measure(model.eval(), example, against, threads, deepsparse_env, rounds, Path(folder), say)
        return replace(found, cpus=cpus)


def check_runs(model: nn.Module, example: Tensor) -> None:
    """Refuse an input that the model cannot take, before a compiler logs the same at length."""
    try:
        with torch.inference_mode():
            model(example)
    except Exception as error:  # each network has its own way to refuse
        shape, reason = tuple(example.shape), " ".join(str(error).split()).rstrip(".")[:200]
        raise ValueError(f"The model cannot take an input of {shape} ({reason}): give another image size.") from error


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[tuple[int, ...]]:
    """Every thread of this process, and what it starts, on the first so many of its CPUs."""
    if not hasattr(os, "sched_setaffinity"):
        yield ()
        return
    before = os.sched_getaffinity(0)
    cpus = tuple(sorted(before)[:threads])
    _pin(cpus)
    try:
        yield cpus
    finally:
        _pin(before)


def _pin(cpus: Iterable[int]) -> None:
    tasks = Path("/proc/self/task")
    for thread in [int(task.name) for task in tasks.iterdir()] if tasks.exists() else [0]:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, cpus)


def _measure(
    model: nn.Module, example: Tensor, against: Sequence[str], threads: int, environment: str | None, rounds: int,
    folder: Path, say: Say,
) -> Benchmark:  # fmt: skip
    steps = Steps(2 + len(against), say)
    steps.next("compiling for the sparse engine, which measures kernels layer by layer")
    fast = compile(model, example, threads)
    engines = {"rankprune": ours(fast)}
    absent = {}
    for name in against:
        steps.next(f"preparing {name}")
        try:
            engines[name] = PEERS[name](model, example, threads, folder, environment)
        except Absent as reason:
            absent[name] = str(reason)
    steps.next(f"timing {', '.join(engines)}, {rounds} rounds in turns")
    rows = in_turns(model, engines, example.shape, rounds)
    return Benchmark(rows, absent, threads, example.shape[0], rounds, str(fast.report))


def ours(fast: Compiled) -> Run:
    """A compiled model as the others are called."""
    return lambda x: timed(lambda: joined(fast(torch.from_numpy(x))))


def in_turns(
    model: nn.Module, engines: Mapping[str, Run], shape: Sequence[int], rounds: int = ROUNDS
) -> tuple[Row, ...]:
    """Time engines on one random input of this shape, one run each a round; errors are against the model in torch."""
    # Zeros would be too easy for some.
    x = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0)).numpy()
    with torch.inference_mode():
        want = joined(model(torch.from_numpy(x)))
    seconds, outputs = turns(engines, x, rounds)
    scale = np.abs(want).max() or 1.0  # of an output of zeros, the difference itself
    error = {name: float(np.abs(got - want).max() / scale) for name, got in outputs.items()}
    return tuple(_row(name, times, shape[0], error[name]) for name, times in seconds.items())


def _row(name: str, seconds: Sequence[float], batch: int, error: float) -> Row:
    median, (low, high) = statistics.median(seconds), np.percentile(seconds, [10, 90])
    return Row(name, min(seconds), median, float(low), float(high), batch / median, error)


def turns(
    engines: Mapping[str, Run], x: np.ndarray, rounds: int
) -> tuple[dict[str, list[float]], dict[str, np.ndarray]]:
    """Seconds of each engine, one run a round, so that a slow spell of the machine falls on all; and what it gave."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    outputs: dict[str, np.ndarray] = {}
    for turn in range(2 + rounds):
        for name, run in engines.items():
            # A first run wakes the threads that slept during the others' turns; the second counts.
            run(x)
            spent, outputs[name] = run(x)
            if turn >= 2:
                seconds[name].append(spent)
    return seconds, outputs
