"""`rankprune compare` and `rankprune analyze`."""

from __future__ import annotations

import argparse

from rankprune.lab.report.analyze import analyze
from rankprune.lab.report.compare import comparison, read_results

from .output import emit, say


def run(args: argparse.Namespace) -> int:
    if args.command == "compare":
        runs = read_results(args.runs, lambda text: say(f"rankprune: {text}"))
        return emit(args.json, [run.to_dict() for run in runs], comparison(runs))
    found = analyze(args.checkpoint, args.model, args.delta, args.image_size)
    return emit(args.json, found.to_dict(), str(found))
