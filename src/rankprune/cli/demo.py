"""`rankprune demo`: four runs on embedded data, their latency, a report, and a sentence that sums it up."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from rankprune.lab.bench.latency import measure_all
from rankprune.lab.recipes.load import load_recipe
from rankprune.lab.report.collect import Collector
from rankprune.lab.report.compare import FinishedRun, comparison
from rankprune.lab.report.page import write_page
from rankprune.lab.report.summary import summary
from rankprune.lab.sweep.sweep import run_sweep
from rankprune.lab.training.smoke import smaller

from .bars import Bars
from .output import check_folder, emit, note, say

# After the dense network the recommended method comes first; all at a sparsity where methods differ.
_RECIPES = ("fashion-dense", "fashion-feather-99.5", "fashion-rpg-99.5", "fashion-gmp-99.5")
# One image reads 9 MB of weights in its linear layers: sparsity pays there, and batches are cheap to train.
_OVERRIDES = ["model.name=vgg-small-fc", "epochs=5"]
_INTRODUCTION = """\
Four runs of the same small VGG on 12,000 images of clothes, with the same epochs and seed: dense, and pruned to 99.5 %
while training with Feather (the recommended method), RPG (rank-based pruning) and gradual magnitude pruning. Then the
latency of each on the sparse engine, and a report. This takes three to four minutes on two cores.
"""
_NEXT = """\
What to try next
  rankprune analyze {folder}
  rankprune train fashion-feather-99 method.beta=3
  rankprune prune YOUR.pth --model torchvision:resnet18 --sparsity 0.9 --out pruned.safetensors
In your own training loop:
  sp = rankprune.attach(model, optimizer, "feather", sparsity=0.98, total_steps=STEPS)
"""


def run(args: argparse.Namespace) -> int:
    """Train, measure latency, write the report, and sum up.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code; 1 if a run failed.
    """
    recipes = [load_recipe(name, _OVERRIDES) for name in _RECIPES]
    recipes = [smaller(recipe) for recipe in recipes] if args.smoke else recipes
    out = check_folder(args.out)
    say(_INTRODUCTION)
    sweep = run_sweep(recipes, out, Bars(len(recipes)))
    folders = [outcome.folder for outcome in sweep.outcomes]
    if not sweep.failures:
        measure_all(folders, note)
    runs = [FinishedRun(outcome.folder, outcome.result) for outcome in sweep.outcomes]
    lines = [comparison(runs), "", *(f"{run.result.recipe}: {run.folder}" for run in runs)] if runs else []
    lines += [f"failed: {name}: {error}" for name, error in sweep.failures.items()]
    value: dict[str, Any] = {
        "runs": [run.to_dict() for run in runs],
        "failures": sweep.failures,
        "report": None,
        "summary": None,
    }
    if not sweep.failures:
        page = Path(out) / "demo.html"
        write_page(Collector(folders).collect(), page)
        sentence = summary(runs[0], runs[1])
        address = page.resolve().as_uri()
        lines += ["", _NEXT.format(folder=runs[1].folder), f"Report: {address}", "", sentence]
        value |= {"report": str(page), "summary": sentence}
        if args.open and not webbrowser.open(address):
            note("no browser could be opened: open the report by its address.")
    emit(args.json, value, "\n".join(lines))
    return 1 if sweep.failures else 0
