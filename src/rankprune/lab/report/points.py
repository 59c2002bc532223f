"""Finished runs as points of a trade-off; runs that differ only in their seed are one point with a standard error."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any


def points(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average the accuracy of the last epoch over seeds, with sparsity and MACs relative to the dense network.

    Args:
        runs: Runs as `read_run` returned them.

    Returns:
        One point per setting.
    """
    settings: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if run["result"] is not None and run["result"]["accuracy_last"] is not None:
            settings.setdefault(run["setting"], []).append(run)
    return [_point(same) for same in settings.values()]


def _point(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, results = runs[0], [run["result"] for run in runs]
    accuracies = [result["accuracy_last"] for result in results]
    shares = [r["macs_sparse"] / r["macs_dense"] for r in results if r["macs_sparse"] and r["macs_dense"]]
    return {
        "name": first["name"],
        "method": first["method"],
        "task": first["task"],
        "runs": [run["id"] for run in runs],
        "accuracy": statistics.fmean(accuracies),
        "error": statistics.stdev(accuracies) / math.sqrt(len(runs)) if len(runs) > 1 else None,
        "sparsity": first["result"]["sparsity"] or 0.0,
        "macs_share": statistics.fmean(shares) if shares else None,
    }
