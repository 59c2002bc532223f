"""MLPrune (Zeng & Urtasun 2019): optimal brain surgery with a Kronecker-factored Fisher."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rankprune.core.keywords import RoundsKeywords
from rankprune.core.method import Group, register
from rankprune.core.schedules import check_count
from rankprune.methods.shared.kfac import damped_inverse, kronecker_factors
from rankprune.methods.shared.surgery import Surgery


@register(
    "mlprune", paper="Zeng & Urtasun 2019, openreview.net/forum?id=r1g5b2RcKm", family="second order", needs=("data",),
)  # fmt: skip
@dataclass(kw_only=True)
class MLPrune(Surgery, RoundsKeywords):
    """Cut where a Kronecker-factored Fisher says that the loss rises least, all layers under one threshold.

    Each layer's Fisher is F ≈ G ⊗ A, A of its inputs and G of its outputs' gradients, with labels drawn from the model
    and scaled to the layer's measured trace; removing w_ij costs w²/(2 [G⁻¹]_ii [A⁻¹]_jj). With `compensate` the others
    move by the sum of what each cut asks for alone. `damping` is a share of the mean of the diagonal, added to A and to
    G. Pruned in `rounds` up to `prune_end`; with prune_end=0 once, at attach, from a trained network. Memory: 24 bytes,
    times Σ over layers of (inputs · kernel)² + outputs², and 64 MB of patches at a time.

    Args:
        batches: How many batches of the data the factors are measured on.
        damping: Added to A and to G, as a share of the mean of their diagonals.
        compensate: Whether the weights that stay move to make up for the cut ones.
    """

    batches: int = 10
    damping: float = 0.1
    compensate: bool = False

    def __post_init__(self) -> None:
        check_count(self.batches, "batches", "batches")
        if not self.damping > 0.0:  # the factors have null directions: softmax gives G one
            raise ValueError(f"damping={self.damping!r} leaves factors without an inverse: it must be positive")

    def update(self, group: Group) -> None:
        inverses = []
        for layer, (a, g) in zip(group.layers, kronecker_factors(group, self.batches)):
            a_inv, g_inv = damped_inverse(a, self.damping), damped_inverse(g, self.damping)  # (n, n), (m, m)
            inverses.append((a_inv, g_inv))
            diagonal = torch.outer(g_inv.diagonal(), a_inv.diagonal())  # (m, n)
            layer.temp["inverse_diagonal"] = diagonal.view(layer.shape).to(layer.weight)
        super().update(group)
        if self.compensate:
            for layer, (a_inv, g_inv) in zip(group.layers, inverses):
                force = torch.where(layer.mask, 0.0, layer.weight / layer.temp["inverse_diagonal"]).double().flatten(1)
                layer.weight.sub_((g_inv @ force @ a_inv).view(layer.shape).to(layer.weight))
