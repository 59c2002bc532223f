"""`rankprune sweep`."""

from __future__ import annotations

import argparse

from rankprune.lab.report.compare import FinishedRun, comparison
from rankprune.lab.sweep.sweep import read_sweep, run_sweep

from .bars import Bars
from .models import overrides
from .output import check_folder, emit


def run(args: argparse.Namespace) -> int:
    """Train every recipe of a sweep file and print the comparison.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code; 1 if a run failed.
    """
    recipes = read_sweep(args.file, overrides(args))
    sweep = run_sweep(recipes, check_folder(args.out), Bars(len(recipes)), args.jobs, args.ray)
    runs = [FinishedRun(outcome.folder, outcome.result) for outcome in sweep.outcomes]
    lines = [comparison(runs), "", *(f"{run.result.recipe}: {run.folder}" for run in runs)] if runs else []
    lines += [f"failed: {name}: {error}" for name, error in sweep.failures.items()]
    emit(args.json, {"runs": [run.to_dict() for run in runs], "failures": sweep.failures}, "\n".join(lines))
    return 1 if sweep.failures else 0
