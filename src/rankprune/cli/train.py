"""`rankprune train`."""

from __future__ import annotations

import argparse

from rankprune.lab.recipes.load import load_recipe
from rankprune.lab.training import smoke, train
from rankprune.lab.training.compare import comparison

from .bars import Bars
from .output import data_override, emit


def run(args: argparse.Namespace) -> int:
    recipe = load_recipe(args.recipe, [*args.overrides, *data_override(args.data)])
    outcome = (smoke if args.smoke else train)(recipe, args.out, resume=args.resume, watcher=Bars())
    if not outcome.main:
        return 0
    result = {"folder": str(outcome.folder), "found": outcome.found, **outcome.result}
    done = "was finished before" if outcome.found else "is finished"
    text = f"{comparison([outcome.result])}\n\nThe run {done}: {outcome.folder}"
    return emit(args.json, result, text)
