"""`rankprune train`."""

from __future__ import annotations

import argparse

from rankprune.lab.models.user_code import names_user_code
from rankprune.lab.recipes.load import load_recipe
from rankprune.lab.report.compare import FinishedRun, comparison
from rankprune.lab.training import smoke, train

from .bars import Bars
from .models import overrides
from .output import check_folder, emit, note


def run(args: argparse.Namespace) -> int:
    """Train a recipe, or read the result of one that is finished.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    recipe = load_recipe(args.recipe, overrides(args))
    if args.data is not None and recipe.data.name == "fashion":
        note("the images of fashion come with the package, so --data is not used.")
    out = check_folder(args.out)
    outcome = (smoke if args.smoke else train)(recipe, out, resume=args.resume, callback=Bars())
    if not outcome.main:
        return 0
    run = FinishedRun(outcome.folder, outcome.result)
    done = "was finished before" if outcome.finished_before else "is finished"
    lines = [comparison([run]), "", f"The run {done}: {outcome.folder}"]
    own = f" --model {recipe.model.name}" if names_user_code(recipe.model.name) else ""
    lines += [f"Its latency: rankprune compare --latency {outcome.folder}{own}"] * (run.latency is None)
    return emit(args.json, {"finished_before": outcome.finished_before, **run.to_dict()}, "\n".join(lines))
