"""Results of runs side by side; those that differ in their seed alone are one row."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rankprune.core.summary import table
from rankprune.lab.errors import RunError

from .folder import RESULT, RunFolder

_RIGHT = "accuracy best sparsity kept rank MACs bytes dead training seconds"

_MEASURES = {"top1": "top-1", "box_ap": "AP of boxes / of masks"}


class NoResult(RunError):
    """A path that holds no finished run."""

    exit_code = 2


def read_results(paths: Iterable[str | Path]) -> list[dict[str, Any]]:
    """Results of run folders, or of all finished runs below a folder of runs; each with its `folder`."""
    found: dict[Path, dict[str, Any]] = {}  # named twice, a run is still one
    for path in map(Path, paths):
        folders = [path] if (path / RESULT).is_file() else sorted(file.parent for file in path.glob(f"*/{RESULT}"))
        if not folders:
            raise NoResult(f"{path} holds no finished run: give a run folder that has a {RESULT}.")
        for folder in folders:
            found.setdefault(folder.resolve(), {"folder": str(folder), **(RunFolder(folder).result() or {})})
    return list(found.values())


def comparison(results: Sequence[dict[str, Any]]) -> str:
    """A table of the runs, and in a note what its columns mean."""
    settings: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        settings.setdefault(result["setting"], []).append(result)
    head = ("run", "accuracy", "best", "sparsity", "kept", "rank", "MACs", "bytes", "dead", "training", "seconds")
    lines = table(head, [_row(runs) for runs in settings.values()], right=_RIGHT)
    deltas = ", ".join(sorted({f"{result['delta']:g}" for result in results}))
    measure = " or ".join(sorted({_MEASURES.get(result.get("metric", "top1"), "measure") for result in results}))
    notes = [
        f"accuracy: test {measure} of the last epoch, best: of the best epoch; both at exactly the sparsity shown",
        f"rank: mean over the layers of δ-rank / full rank at δ={deltas} (of exact rank / full rank)",
        "kept: prunable weights left; MACs: of one image, over the weights kept; bytes: of the model's file; "
        "dead: filters without a weight; training: FLOPs as a share of dense training",
    ]
    notes += sorted({f"{result['recipe']}: {result['note']}" for result in results if result.get("note")})
    return "\n".join([*lines, "", *notes])


def _row(runs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    first = runs[0]
    return (
        first["recipe"] + (f" ({len(runs)} seeds)" if len(runs) > 1 else ""),
        _accuracy(runs, "last"),
        _accuracy(runs, "best"),
        f"{first['sparsity']:.4%}",
        f"{first['kept']:,} of {first['prunable']:,}",
        f"{_mean(runs, 'delta_rank_ratio'):.3f} ({_mean(runs, 'exact_rank_ratio'):.3f})",
        f"{_short(_mean(runs, 'macs_sparse'))} of {_short(first['macs_dense'])}",
        f"{_short(_mean(runs, 'bytes_sparse'))}B",
        f"{_mean(runs, 'dead_filters'):g} of {first['filters']}",
        f"{_mean(runs, 'training_share'):.3f}",
        f"{_mean(runs, 'seconds'):.0f}",
    )


def _accuracy(runs: Sequence[dict[str, Any]], when: str) -> str:
    keys = [f"accuracy_{when}", *(["mask_ap_" + when] if "mask_ap_" + when in runs[0] else [])]
    return " / ".join(_percent([run[key] for run in runs]) for key in keys)


def _mean(runs: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.fmean(run[key] for run in runs)


def _percent(values: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread} %"


def _short(value: float) -> str:
    """Three figures and a unit of thousands."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 1000 or unit == "T":
            break
        value /= 1000
    return f"{value:.3g} {unit}"
