"""`rankprune compare` and `rankprune analyze`."""

from __future__ import annotations

import argparse

from rankprune.lab.training.analyze import analyze
from rankprune.lab.training.compare import comparison, read_results

from .output import emit


def run(args: argparse.Namespace) -> int:
    if args.command == "compare":
        results = read_results(args.runs)
        return emit(args.json, results, comparison(results))
    found = analyze(args.checkpoint, args.model, args.delta, args.image_size)
    return emit(args.json, found.to_dict(), str(found))
