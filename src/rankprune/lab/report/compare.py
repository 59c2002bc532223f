"""A table of finished runs; runs that differ only in their seed share a row."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rankprune.core.summary import table
from rankprune.lab.bench.latency import ENGINES, Latency
from rankprune.lab.bench.latency import read as read_latency
from rankprune.lab.errors import RunError
from rankprune.lab.runs.result import RunResult
from rankprune.lab.runs.run_folder import RESULT, RunFolder

# Two tables, so that a line of either fits on an ordinary terminal: what the network is, and what it costs.
_QUALITY = ("accuracy", "best", "sparsity", "kept", "rank", "dead")
_COST = ("bytes", "MACs", "training", "seconds")
_MEASURES = {"top1": "top-1", "box_ap": "AP of boxes / of masks"}


class NoResult(RunError):
    """A path without a finished run."""

    exit_code = 2


@dataclass(frozen=True)
class FinishedRun:
    """A run folder with its result."""

    folder: Path
    result: RunResult

    @cached_property
    def latency(self) -> Latency | None:
        """The measured latency; None if it was not measured."""
        return read_latency(self.folder)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        latency = None if self.latency is None else self.latency.to_dict()
        return {"folder": str(self.folder), **self.result.to_dict(), "latency": latency}


def read_results(paths: Iterable[str | Path], skipped: Callable[[str], None] | None = None) -> list[FinishedRun]:
    """Read the results of run folders, or of all finished runs below a folder of runs.

    Args:
        paths: Run folders and folders of run folders; a run named twice counts once.
        skipped: Called with a sentence for each damaged result below a folder of runs, which is then left out.
            Without it, or for a run folder in `paths`, a damaged result is an error.

    Returns:
        The finished runs, in the order of `paths`.

    Raises:
        NoResult: A path holds no finished run.
        RunError: A result is damaged.
    """
    chosen = [Path(path) for path in paths]
    finished: dict[Path, FinishedRun] = {}
    for path in chosen:
        named = (path / RESULT).is_file()
        folders = [path] if named else sorted(file.parent for file in path.glob(f"*/{RESULT}"))
        if not folders:
            raise NoResult(f"{path} holds no finished run: give a run folder that has a {RESULT}.")
        for folder in folders:
            try:
                result = RunFolder(folder).result()
            except RunError as error:
                if named or skipped is None:
                    raise
                skipped(f"skipped: {error}")
                continue
            if result is not None:
                finished.setdefault(folder.resolve(), FinishedRun(folder, result))
    if not finished:
        raise NoResult(f"No run in {', '.join(map(str, chosen))} has a readable result: resume one of them.")
    return list(finished.values())


def comparison(runs: Sequence[FinishedRun]) -> str:
    """Format runs as two tables, of accuracy and of cost, with notes that explain their columns.

    Args:
        runs: Finished runs.

    Returns:
        The text.
    """
    settings: dict[str, list[FinishedRun]] = {}
    for run in runs:
        settings.setdefault(run.result.setting, []).append(run)
    results = [run.result for run in runs]
    engines = [name for name in ENGINES if any(run.latency and name in run.latency.times for run in runs)]
    names = _names(settings)
    timed = [f"ms {ENGINES[name]}" for name in engines]
    quality = [(names[key], *_quality([run.result for run in same])) for key, same in settings.items()]
    cost = [
        (names[key], *_cost([run.result for run in same]), *(_time(same, engine) for engine in engines))
        for key, same in settings.items()
    ]
    lines = table(("run", *_QUALITY), quality, right=" ".join(_QUALITY))
    lines += ["", *table(("run", *_COST, *timed), cost, right=" ".join(_COST))]
    deltas = ", ".join(sorted({f"{result.delta:g}" for result in results}))
    measure = " or ".join(sorted({_MEASURES.get(result.metric, "measure") for result in results}))
    notes = [
        f"accuracy: test {measure} of the last epoch; best: of the best epoch; both at exactly the sparsity shown",
        f"rank: mean over the layers of δ-rank / full rank at δ={deltas} (in parentheses: of exact rank / full rank)",
        "kept: nonzero prunable weights; dead: filters without a weight",
        "bytes: size of the sparse file; MACs: per image, over the kept weights; training: FLOPs as a fraction of "
        "dense training",
    ]
    if engines:
        latencies = [run.latency for run in runs if run.latency is not None]
        where = {f"{x.cpu}, {x.threads} threads, {x.rounds} interleaved rounds" for x in latencies}
        notes.append(f"ms: median latency of one image (10th to 90th percentile); {'; '.join(sorted(where))}")
    notes += sorted({f"{result.recipe}: {result.note}" for result in results if result.note})
    return "\n".join([*lines, "", *notes])


def _names(settings: Mapping[str, Sequence[FinishedRun]]) -> dict[str, str]:
    """The name of each row; rows of the same recipe with other settings are told apart by their fingerprint."""
    firsts = {key: same[0].result for key, same in settings.items()}
    recipes = Counter(result.recipe for result in firsts.values())
    names = {}
    for key, result in firsts.items():
        mark = f" {result.fingerprint}" if recipes[result.recipe] > 1 else ""
        seeds = f" ({len(settings[key])} seeds)" if len(settings[key]) > 1 else ""
        names[key] = f"{result.recipe}{mark}{seeds}"
    return names


def _mean(runs: Sequence[RunResult], value: Callable[[RunResult], float]) -> float:
    return statistics.fmean(value(run) for run in runs)


def _quality(runs: Sequence[RunResult]) -> tuple[str, ...]:
    first = runs[0]
    delta_rank = _mean(runs, lambda run: run.delta_rank_ratio)
    exact_rank = _mean(runs, lambda run: run.exact_rank_ratio)
    return (
        _accuracy(runs, lambda run: run.accuracy_last, "mask_ap_last"),
        _accuracy(runs, lambda run: run.accuracy_best, "mask_ap_best"),
        f"{100 * first.sparsity:.4f} %",
        f"{first.kept:,} of {first.prunable:,}",
        f"{delta_rank:.3f} ({exact_rank:.3f})",
        f"{_mean(runs, lambda run: run.dead_filters):g} of {first.filters}",
    )


def _cost(runs: Sequence[RunResult]) -> tuple[str, ...]:
    return (
        f"{short(_mean(runs, lambda run: run.bytes_sparse))}B",
        f"{short(_mean(runs, lambda run: run.macs_sparse))} of {short(runs[0].macs_dense)}",
        f"{_mean(runs, lambda run: run.training_share):.3f}",
        f"{_mean(runs, lambda run: run.seconds):.0f}",
    )


def _time(runs: Sequence[FinishedRun], engine: str) -> str:
    """The median over seeds of an engine's median latency, with the range of that run."""
    times = [run.latency.times[engine] for run in runs if run.latency and engine in run.latency.times]
    if not times:
        return "not timed"
    middle = sorted(times, key=lambda time: time.median)[(len(times) - 1) // 2]
    return f"{1e3 * middle.median:.3g} ({1e3 * middle.low:.3g}-{1e3 * middle.high:.3g})"


def _accuracy(runs: Sequence[RunResult], value: Callable[[RunResult], float], second: str) -> str:
    """Accuracy, or for detection the AP of boxes and of masks."""
    parts = [[value(run) for run in runs]]
    if all(second in run.scores for run in runs):
        parts.append([run.scores[second] for run in runs])
    return " / ".join(_percent(values) for values in parts)


def _percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread} %"


def short(value: float) -> str:
    """Format a number with three digits and a prefix of its unit.

    Args:
        value: A count, 0 or above.

    Returns:
        Such as "1.23 M" or "512 ", to be followed by the unit.
    """
    for prefix in ("", "k", "M", "G", "T"):
        if value < 999.5 or prefix == "T":  # 999.5 would be rounded to 1e+03
            break
        value /= 1000
    return f"{value:.3g} {prefix}"
