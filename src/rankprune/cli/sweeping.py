"""`rankprune sweep` and `rankprune demo`, which is a sweep with an introduction."""

from __future__ import annotations

import argparse

from rankprune.lab.recipes.load import load_recipe
from rankprune.lab.report.compare import FinishedRun, comparison
from rankprune.lab.sweep.sweep import read_sweep, run_sweep
from rankprune.lab.training.smoke import smaller

from .bars import Bars
from .output import data_override, emit, say

_DEMO = ("fashion-dense", "fashion-rpg-98", "fashion-gmp-98")
_INTRODUCTION = """\
Three runs of the same small VGG on 12,000 images of clothes, with the same epochs and seed: dense, and pruned to 98 %
while training with RPG (rank-based pruning) and with gradual magnitude pruning. This takes a few minutes.
"""
_NEXT = """\
What to try next
  rankprune analyze {folder}
  rankprune train fashion-rpg-99 method.lam=2
  rankprune prune YOUR.pth --model torchvision:resnet18 --sparsity 0.9 --out pruned.safetensors
In your own training loop:
  sp = rankprune.attach(model, optimizer, "rpg", sparsity=0.98, total_steps=STEPS)
"""


def run(args: argparse.Namespace) -> int:
    demo = args.command == "demo"
    if demo:
        recipes = [load_recipe(name, ["epochs=6"]) for name in _DEMO]  # a newcomer waits no longer than needed
        recipes = [smaller(recipe) for recipe in recipes] if args.smoke else recipes
        say(_INTRODUCTION)
    else:
        recipes = read_sweep(args.file, [*args.overrides, *data_override(args.data)])
    jobs, ray = (None, None) if demo else (args.jobs, args.ray)
    if ray is not None and "=" in ray:
        raise ValueError(f"--ray took {ray!r} for the address of a cluster: write key=value before it.")
    sweep = run_sweep(recipes, args.out, Bars(len(recipes)), jobs, ray)
    runs = [FinishedRun(outcome.folder, outcome.result) for outcome in sweep.outcomes]
    lines = [comparison(runs), "", *(f"{run.result.recipe}: {run.folder}" for run in runs)] if runs else []
    lines += [f"failed: {name}: {error}" for name, error in sweep.failures.items()]
    if demo and not sweep.failures:
        lines += ["", _NEXT.format(folder=runs[1].folder)]
    emit(args.json, {"runs": [run.to_dict() for run in runs], "failures": sweep.failures}, "\n".join(lines))
    return 1 if sweep.failures else 0
