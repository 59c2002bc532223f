"""`rankprune train`."""

from __future__ import annotations

import argparse

from rankprune.lab.recipes.load import load_recipe
from rankprune.lab.report.compare import FinishedRun, comparison
from rankprune.lab.training import smoke, train

from .bars import Bars
from .output import data_override, emit


def run(args: argparse.Namespace) -> int:
    recipe = load_recipe(args.recipe, [*args.overrides, *data_override(args.data)])
    outcome = (smoke if args.smoke else train)(recipe, args.out, resume=args.resume, callback=Bars())
    if not outcome.main:
        return 0
    run = FinishedRun(outcome.folder, outcome.result)
    result = {"found": outcome.found, **run.to_dict()}
    done = "was finished before" if outcome.found else "is finished"
    text = f"{comparison([run])}\n\nThe run {done}: {outcome.folder}"
    return emit(args.json, result, text)
