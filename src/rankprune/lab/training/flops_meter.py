"""Theoretical FLOPs of training, counted step by step with the masks of each step."""

from __future__ import annotations

from rankprune.lab.models.detection import count_macs

from .task import Task


class FlopsMeter:
    """Counts FLOPs of forward and backward over the kept weights; mask updates by gradient need a dense gradient.

    A step has three passes of equal cost: forward, gradient of the inputs, gradient of the weights (Evci et al. 2020,
    appendix H). 1 MAC = 2 FLOPs.

    Args:
        task: The objects of the run.
    """

    def __init__(self, task: Task) -> None:
        rows = count_macs(task.plain(), task.data.in_channels, task.data.image_size).rows
        self._samples = task.samples_per_step
        self._groups = [] if task.sparsifier is None else task.sparsifier.groups
        layers = {layer.key: layer for group in self._groups for layer in group.layers}
        self._layers = [(layers[row.name], row.dense / layers[row.name].numel) for row in rows if row.name in layers]
        self._never_pruned = sum(row.dense for row in rows if row.name not in layers)
        self._dense = sum(row.dense for row in rows)
        self._sparsifier = task.sparsifier
        self._sparse = self._count()  # MACs of one sample with the masks of the next step

    def step(self) -> float:
        """Return the FLOPs of the optimizer step just taken."""
        if self._sparsifier is None:
            return 2.0 * 3 * self._dense * self._samples
        before = self._sparse
        moved = [group for group in self._groups if self._sparsifier.step in group.plan.steps]
        if moved:
            self._sparse = self._count()
        by_gradient = any("grad" in group.method.info.needs for group in moved)
        return 2.0 * (2 * before + (self._dense if by_gradient else before)) * self._samples

    def _count(self) -> float:
        return self._never_pruned + sum(layer.kept() * macs for layer, macs in self._layers)
