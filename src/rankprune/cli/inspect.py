"""`rankprune compare` and `rankprune analyze`."""

from __future__ import annotations

import argparse

from rankprune.lab.bench.latency import measure_all
from rankprune.lab.report.analyze import analyze
from rankprune.lab.report.compare import comparison, read_results

from .models import allow
from .output import emit, note


def run(args: argparse.Namespace) -> int:
    """Compare runs, or analyze the layers of one.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    if args.command == "compare":
        allow(args.model)
        runs = read_results(args.runs, note)
        if args.latency:
            measure_all([run.folder for run in runs], note)
        return emit(args.json, [run.to_dict() for run in runs], comparison(runs))
    analysis = analyze(args.checkpoint, allow(args.model), args.delta, args.image_size)
    return emit(args.json, analysis.to_dict(), str(analysis))
