"""Measures RPG's growth: how much of it the rank term decides, and how much survives the next update."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankprune.core.method import Extra, Group, PrunableLayer
from rankprune.core.select import keep_largest
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.training.callbacks import Callback
from rankprune.lab.training.interrupt import Interrupt
from rankprune.lab.training.loop import Loop, Progress
from rankprune.lab.training.task import build
from rankprune.methods.rpg import RPG

from .runs import Run

TASK, PERCENT = "cifar10-cpu-vgg", 99.5
# The authors' λ at 98 %; a λ large enough to matter beside the task gradient; the authors' ΔT; and a grace period for
# grown weights.
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rpg", {"method.lam": 4}),
    ("rpg", {"method.lam": 64}),
    ("rpg", {"method.lam": 4, "method.every": 100}),
    ("rpg+grace", {"method.lam": 64}),
)


@dataclass
class Watch(Extra):
    """Observes each update of RPG when it begins, and reserves nothing. Growth is counted at the following update."""

    grown: int = 0  # weights grown so far
    survived: int = 0  # of these, still active after the next update
    compared: int = 0  # weights grown in layers that have a rank term
    alike: int = 0  # of these, also grown without the rank term
    sizes: list[float] = field(default_factory=list)  # RMS of λ · rank gradient / RMS of task gradient, per layer
    _masks: dict[PrunableLayer, Tensor] = field(default_factory=dict)
    _born: dict[PrunableLayer, Tensor] = field(default_factory=dict)

    def reserve(self, group: Group) -> Mapping[PrunableLayer, Tensor]:
        """Observe the masks and gradients of a group.

        Args:
            group: The group that is about to be updated.

        Returns:
            An empty mapping.
        """
        if group.step:
            for layer in group.layers:
                self._look(layer)
            self._compare(group)
        return {}

    def _look(self, layer: PrunableLayer) -> None:
        if layer in self._born:
            self.grown += int(self._born[layer].sum())
            self.survived += int((self._born[layer] & layer.mask).sum())
        if layer in self._masks:
            self._born[layer] = layer.mask & ~self._masks[layer]
        self._masks[layer] = layer.mask.clone()

    def _compare(self, group: Group) -> None:
        method = group.method
        assert isinstance(method, RPG)
        steered = [layer for layer in group.layers if layer in self._born and layer.kind == "conv"]
        terms = dict(method.rank_terms(group, steered, lambda layer: ~layer.mask, group.step))  # empty where λ is 0
        for layer in steered:
            count, out, task = int(self._born[layer].sum()), ~layer.mask, layer.grad
            rank = terms.get(layer, torch.zeros_like(task))
            if not count or count > int(out.sum()):
                continue
            alone, both = (keep_largest(torch.where(out, g.abs(), -torch.inf), count) for g in (task, task + rank))
            self.compared += count
            self.alike += int((alone & both).sum())
            self.sizes.append(float((rank[out].square().mean() / task[out].square().mean()).sqrt()))


def growth(data: str | None, embedded: bool, budget: tuple[str, ...] = ("epochs=4",)) -> dict[str, Any]:
    """Train each case and observe its growth.

    Args:
        data: Folder of CIFAR-10, if there is one.
        embedded: Use the embedded images instead.
        budget: Overrides of the recipes.

    Returns:
        The statistics of each case.
    """
    cases = []
    for method, settings in CASES:
        run = Run(TASK, method, PERCENT, tuple(settings.items()), budget=budget)
        watch = Watch()
        with tempfile.TemporaryDirectory() as out:
            recipe = run.placed(Path(out), data, embedded)
            task, folder = build(recipe), RunFolder.of(recipe, out)
            assert task.sparsifier is not None
            (group,) = task.sparsifier.groups
            group.extras = (*group.extras, watch)
            folder.create()
            with Interrupt() as interrupt:
                Loop(task, folder, Callback(), Progress()).run(interrupt)
        cases.append({
            "method": method, "settings": settings, "grown": watch.grown,
            "survived": watch.survived / max(watch.grown, 1), "alike": watch.alike / max(watch.compared, 1),
            "size": float(torch.tensor(watch.sizes).median()) if watch.sizes else 0.0,
        })  # fmt: skip
    return {"run": f"{TASK} at {PERCENT:g} %", "embedded": embedded, "cases": cases}
