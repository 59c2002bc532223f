"""Latency of a finished run on the sparse engine, torch and ONNX Runtime, saved in its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankprune.lab.errors import RunError
from rankprune.lab.progress import Say, Steps, silent
from rankprune.lab.runs.environment import cpu_name
from rankprune.lab.runs.open_model import open_model
from rankprune.lab.runs.run_folder import MODEL, RunFolder
from rankprune.lab.runs.sealed_json import NotWhole, read_table, seal, unseal

from .benchmark import benchmark

LATENCY = "latency.json"
ENGINES = {"rankprune": "engine", "torch": "torch", "onnxruntime": "ONNX Runtime"}
_SLOWEST = 1e6  # seconds


@dataclass(frozen=True)
class Time:
    """Seconds per image over all rounds: minimum, median, 10th and 90th percentile."""

    minimum: float
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_short(self.median)} ms ({_short(self.low)} - {_short(self.high)})"


@dataclass(frozen=True)
class Latency:
    """Latency of one image on each engine, measured in interleaved rounds.

    Attributes:
        times: By engine: "rankprune", "torch", and "onnxruntime" if it is installed.
        threads: Threads of every engine.
        rounds: Number of timings per engine.
        cpu: Name of the processor.
    """

    times: dict[str, Time]
    threads: int
    rounds: int
    cpu: str

    def best_peer(self) -> Time:
        """Return the faster of torch and ONNX Runtime, by medians."""
        return min((time for name, time in self.times.items() if name != "rankprune"), key=lambda time: time.median)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        times = {name: vars(time) for name, time in self.times.items()}
        return {"times": times, "threads": self.threads, "rounds": self.rounds, "cpu": self.cpu}

    @classmethod
    def from_dict(cls, table: Any) -> Latency:
        """Check an object from a file and rebuild the latency from it.

        Args:
            table: The parsed JSON.

        Returns:
            The latency.

        Raises:
            NotWhole: Something is missing or invalid.
        """
        times = table.get("times") if isinstance(table, Mapping) else None
        if not isinstance(times, Mapping) or not {"rankprune", "torch"} <= set(times) <= set(ENGINES):
            raise NotWhole("it holds no times")
        threads, rounds, cpu = (table.get(key) for key in ("threads", "rounds", "cpu"))
        counts = all(type(count) is int and 0 < count < 1 << 20 for count in (threads, rounds))
        if not counts or not isinstance(cpu, str) or len(cpu) > 200:
            raise NotWhole("it does not say what was measured")
        return cls({name: _time(value) for name, value in times.items()}, threads, rounds, cpu)


def _time(value: Any) -> Time:
    keys = ("minimum", "median", "low", "high")
    if not isinstance(value, Mapping) or any(
        isinstance(value.get(key), bool)
        or not isinstance(value.get(key), (int, float))
        or not 0 < value[key] < _SLOWEST
        for key in keys
    ):
        raise NotWhole("one of its times is not a number of seconds")
    return Time(*(float(value[key]) for key in keys))


def _short(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def measure(folder: Path, threads: int | None = None, say: Say = silent) -> Latency:
    """Measure the latency of a finished run's model for one image, and save it in the run's folder.

    Args:
        folder: The run folder.
        threads: Threads of every engine; by default the cores that this process may use.
        say: Called with sentences about the progress.

    Returns:
        The latency.

    Raises:
        ValueError: The model cannot be opened or compiled.
        RunError: The times cannot be written.
    """
    model, example, _ = open_model(folder)
    timing = benchmark(model, example, ("torch", "onnxruntime"), threads, say=say)
    times = {row.name: Time(row.minimum, row.median, row.low, row.high) for row in timing.rows}
    latency = Latency(times, timing.threads, timing.rounds, cpu_name())
    RunFolder(folder).write_json(LATENCY, seal(latency.to_dict()))
    return latency


def read(folder: Path) -> Latency | None:
    """Read the saved latency of a run.

    Args:
        folder: The run folder.

    Returns:
        The latency; None if it was not measured or the file is damaged.
    """
    path = folder / LATENCY
    try:
        return Latency.from_dict(unseal(read_table(path), {})) if path.is_file() else None
    except NotWhole:
        return None


def measure_all(folders: Iterable[Path], say: Say = silent) -> dict[Path, Latency]:
    """Return the latency of each run that has a model, measuring those that have none yet.

    Args:
        folders: Run folders.
        say: Called with sentences about progress and failures.

    Returns:
        The latency by folder.
    """
    latencies, missing = {}, []
    for folder in folders:
        latency = read(folder)
        if latency is not None:
            latencies[folder] = latency
        elif (folder / MODEL).is_file():
            missing.append(folder)
    steps = Steps(len(missing), say)
    for folder in missing:
        steps.next(f"timing {folder.name} on the sparse engine, torch and ONNX Runtime")
        try:
            latencies[folder] = measure(folder)
        except (ValueError, ImportError, RunError) as error:
            say(f"{folder.name} has no latency: {error}")
    return latencies
