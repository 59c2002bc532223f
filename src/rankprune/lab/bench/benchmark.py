"""Latency and throughput of the sparse engine and other engines, interleaved, with their outputs compared."""

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
        name: Name of the engine.
        minimum: The shortest round.
        median: The median round.
        low: The 10th percentile.
        high: The 90th percentile.
        images_per_second: By the median.
        error: Largest absolute difference from torch's output, relative to the output's largest absolute value.
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
    """The results of all engines, and the reasons why others are missing."""

    rows: tuple[Row, ...]
    absent: dict[str, str]
    threads: int
    batch: int
    rounds: int
    compiled: str
    cpus: tuple[int, ...] = ()  # all engines were pinned to these; empty if the system cannot pin

    def ratio(self, name: str, by: str = "median") -> float:
        """Return how many times faster the sparse engine is than another engine.

        Args:
            name: The other engine.
            by: "median" or "minimum".

        Returns:
            Seconds of the other engine / seconds of the sparse engine.
        """
        seconds = {row.name: getattr(row, by) for row in self.rows}
        return float(seconds[name] / seconds["rankprune"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        where = f" on CPU {', '.join(map(str, self.cpus))}" if self.cpus else ""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}{where}"
        lines = [f"batch {self.batch}, {threads}, {self.rounds} interleaved rounds", f"compiled: {self.compiled}"]
        heads = ("min ms", "median ms", "images/s", "by min", "by median", "error")
        lines.append(f"{'engine':<16} " + " ".join(f"{head:>9}" for head in heads) + "  10-90 % of rounds, ms")
        for row in self.rows:
            times = f"{row.minimum * 1e3:>9.2f} {row.median * 1e3:>9.2f} {row.images_per_second:>9.1f}"
            ratios = f"{self.ratio(row.name, 'minimum'):>9.2f} {self.ratio(row.name):>9.2f}"
            spread = f"{row.low * 1e3:.3g} - {row.high * 1e3:.3g}"
            lines.append(f"{row.name:<16} {times} {ratios} {row.error:>9.1e}  {spread}")
        lines.append("by min, by median: the engine's time / rankprune's time")
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
    """Measure a model on the sparse engine and on other engines, one run each per round, and compare the outputs.

    Args:
        model: The model; it is put into evaluation mode.
        example: An input of the batch size to measure.
        against: Names of other engines, out of `PEERS`.
        threads: Threads of every engine; by default the cores that this process may use.
        deepsparse_env: A virtual environment that has deepsparse.
        rounds: Number of timings per engine.
        say: Called with sentences about the progress.

    Returns:
        A row per engine, and the engines that are missing with the reason.

    Raises:
        ValueError: There is no such engine, or the model cannot be compiled for the example.
    """
    if unknown := [name for name in against if name not in PEERS]:
        raise ValueError(f"there is no engine {unknown[0]} to compare with: choose among {', '.join(PEERS)}")
    threads = thread_count(threads)
    check_runs(model.eval(), example)
    with torch_threads(threads), pinned(threads) as cpus, tempfile.TemporaryDirectory() as folder:
        measured = _measure(model.eval(), example, against, threads, deepsparse_env, rounds, Path(folder), say)
        return replace(measured, cpus=cpus)


def check_runs(model: nn.Module, example: Tensor) -> None:
    """Raise if the model does not accept an input, before a compiler logs the same error at length.

    Args:
        model: The model.
        example: The input.

    Raises:
        ValueError: The model raised.
    """
    try:
        with torch.inference_mode():
            model(example)
    except Exception as error:  # models raise all kinds of errors
        shape, reason = tuple(example.shape), " ".join(str(error).split()).rstrip(".")[:200]
        if isinstance(error, TypeError) and "required positional argument" in reason:
            way_out = "this command gives one input, so use rankprune.compile(model, (input, ...)) in Python"
        else:
            way_out = "try another size"
        raise ValueError(f"The model does not accept an input of {shape} ({reason}): {way_out}.") from error


@contextlib.contextmanager
def pinned(threads: int) -> Iterator[tuple[int, ...]]:
    """Pin every thread of this process, and of processes it starts, to its first CPUs within the block.

    Args:
        threads: Number of CPUs.

    Yields:
        The CPUs; empty if the system cannot pin.
    """
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
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
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
    steps.next(f"timing {', '.join(engines)}, {rounds} interleaved rounds")
    rows = in_turns(model, engines, example.shape, rounds)
    return Benchmark(rows, absent, threads, example.shape[0], rounds, str(fast.report))


def ours(fast: Compiled) -> Run:
    """Wrap a compiled model in the interface of the other engines.

    Args:
        fast: The compiled model.

    Returns:
        A function from a NumPy batch to seconds and output.
    """
    return lambda x: timed(lambda: joined(fast(torch.from_numpy(x))))


def in_turns(
    model: nn.Module, engines: Mapping[str, Run], shape: Sequence[int], rounds: int = ROUNDS
) -> tuple[Row, ...]:
    """Measure engines on a random input, one run each per round.

    Args:
        model: The model in torch, to compare the outputs with.
        engines: The engines by name.
        shape: Shape of the input.
        rounds: Number of timings per engine.

    Returns:
        A row per engine.
    """
    # Not zeros, because some engines may be faster on them.
    x = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0)).numpy()
    with torch.inference_mode():
        want = joined(model(torch.from_numpy(x)))
    seconds, outputs = turns(engines, x, rounds)
    scale = np.abs(want).max() or 1.0  # the error of an all-zero output is absolute
    error = {name: float(np.abs(got - want).max() / scale) for name, got in outputs.items()}
    return tuple(_row(name, times, shape[0], error[name]) for name, times in seconds.items())


def _row(name: str, seconds: Sequence[float], batch: int, error: float) -> Row:
    median, (low, high) = statistics.median(seconds), np.percentile(seconds, [10, 90])
    return Row(name, min(seconds), median, float(low), float(high), batch / median, error)


def turns(
    engines: Mapping[str, Run], x: np.ndarray, rounds: int
) -> tuple[dict[str, list[float]], dict[str, np.ndarray]]:
    """Time engines one run each per round, so that a slow phase of the machine affects all of them.

    Args:
        engines: The engines by name.
        x: The input.
        rounds: Number of timings per engine.

    Returns:
        Seconds of every round, and the outputs, by engine.
    """
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    outputs: dict[str, np.ndarray] = {}
    for turn in range(2 + rounds):
        for name, run in engines.items():
            # The first run wakes threads that slept while other engines ran; only the second is timed.
            run(x)
            spent, outputs[name] = run(x)
            if turn >= 2:
                seconds[name].append(spent)
    return seconds, outputs
