"""RPG, rank-based pruning (Tian et al., NeurIPS 2023)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankprune.core.group import PerLayer
from rankprune.core.keywords import GradualKeywords
from rankprune.core.method import DropGrow, Group, PrunableLayer, register
from rankprune.core.plan import Gradual, Plan
from rankprune.core.schedules import Value, check_count, value_at
from rankprune.methods.shared.rank_term import check_coefficients, noise_like, rank_gradients, scaled

# λ and δ̃ of the authors' ImageNet runs; between them the nearest listed sparsity below holds.
PUBLISHED = {0.80: (0.5, 0.2), 0.90: (0.5, 0.1), 0.95: (3.0, 0.2), 0.98: (4.0, 0.2)}

Terms = Iterator[tuple[PrunableLayer, Tensor]]


@register("rpg", paper="Tian et al. 2023, arXiv:2311.17493", family="drop and grow", needs=("grad",))
@dataclass(kw_only=True)
class RPG(DropGrow, GradualKeywords):
    """Gradual global magnitude pruning that regrows by the gradient of task loss + λ · rank loss.

    Global magnitude sets what each layer keeps, then each layer drops and regrows a share of it (Algorithm 1).
    The rank loss (eq. 2) is minus the squared distance of a normalised weight matrix to its best rank-k approximation.

    Args:
        sparsity: The share of the weights to cut by the end.
        lam: λ, the weight of the rank loss: a number, a schedule, or "ratio:R", which scales each layer's rank gradient
            to R times its task gradient. None: the authors', by sparsity (0.5 at 80 and 90 %, 3 at 95 %, 4 from 98 %).
        delta: δ̃, the share of a matrix's energy beyond the rank k that is aimed at. None: the authors', 0.1 at 90 %
            and 0.2 elsewhere.
        grow: α, the share of a layer that is exchanged at first; a cosine takes it to 0 at the end of updates. 0.3.
        every: ΔT, the steps between two mask updates, each of which takes the place of an optimizer step. None: about
            a hundred updates, and 100 steps where training is long enough.
        prune_end: The step, or share of training, at which the final sparsity is reached. 0.9.
        update_end: No update at or after this step. None: just after `prune_end`.
        density_schedule: "exponential", the density d^(u/U) of the paper, or "cubic".
        rank_on: What the rank loss steers: "growth" (Algorithm 1), the "weights" by their gradient, or "both".
        rank_every: Steps between the rank gradients of `rank_on="weights"` or "both". 10.
        rank_reduction: "mean" of the layers' rank losses, as in the authors' code, or the paper's "sum".
        rank_layers: "conv": convolutions alone, as the authors do; "all": linear and attention layers too.
        rank_signal: "rank"; "noise" of the same size is a control, not a method.
        plan: When masks are updated and how many weights stay: `every`, `prune_end`, … together.
        distribution: How layers share the budget: "global", "uniform", "er", "erk" or "lamp".
        budget: What is counted: "weights" or "macs".

    Example:
        sp = rp.attach(model, optimizer, rp.methods.RPG(lam=4.0), sparsity=0.98, total_steps=10_000)
    """

    plan: Plan = Gradual()
    lam: Value | str | None = None
    delta: Value | None = None
    rank_on: Literal["growth", "weights", "both"] = "growth"
    rank_every: int = 10
    rank_reduction: Literal["mean", "sum"] = "mean"
    rank_layers: Literal["conv", "all"] = "conv"
    rank_signal: Literal["rank", "noise"] = "rank"

    def __post_init__(self) -> None:
        check_coefficients(self.lam, self.delta)
        check_count(self.rank_every, "rank_every", "steps")

    def replaces_optimizer_step(self) -> bool:
        return self.grow != 0  # without growth it is plain gradual pruning, and the step is taken

    def update(self, group: Group) -> None:
        """Algorithm 1: the rank gradients of the weights as they are, then gradual pruning with growth by them."""
        if not self.steered(group.layers):
            warnings.warn("no convolution among the prunable weights: pass rank_layers='all'", stacklevel=2)
        if self.rank_on != "weights" and self.replaces_optimizer_step():
            for layer, term in self.rank_terms(group, group.layers, lambda layer: ~layer.mask, group.step):
                layer.temp["rank_term"] = term
        super().update(group)

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        """|∂(task loss + λ · rank loss)/∂w|, of the weights as they were when the update began."""
        return torch.add(layer.grad, layer.temp.get("rank_term", 0.0)).abs_()

    def before_every(self) -> int:
        return 0 if self.rank_on == "growth" else self.rank_every

    def before_step(self, layers: Sequence[PrunableLayer], group: Group, step: int) -> None:
        """Train the active weights by the rank loss too: the objective L_task + λ L_rank as the paper writes it."""
        stepped = [layer for layer in layers if layer.parameter.grad is not None]
        for layer, term in self.rank_terms(group, stepped, lambda layer: layer.mask, step):
            layer.add_gradient(term.mul_(layer.mask))

    def rank_terms(self, group: Group, layers: Sequence[PrunableLayer], where: PerLayer, step: int) -> Terms:
        """λ · ∂(rank loss)/∂W of each layer that the rank loss is taken of.

        Args:
            group: The group that the layers belong to.
            layers: The layers to choose from.
            where: The positions of a layer at which its term will act, as a mask.
            step: The optimizer step, for schedules.

        Yields:
            A layer and its term; nothing where λ is 0.
        """
        (lam, delta), steered = self.coefficients(), self.steered(layers)
        trained = sum(layer.count(layer.weight) > 0 for layer in steered) if self.rank_reduction == "mean" else 1
        if lam := lam if isinstance(lam, str) else value_at(lam, step) / max(trained, 1):
            for layer, rank_grad in zip(steered, rank_gradients(steered, value_at(delta, step), group.model)):
                term = scaled(layer, rank_grad, lam, where(layer))
                yield layer, noise_like(layer, term, where(layer), step) if self.rank_signal == "noise" else term

    def steered(self, layers: Sequence[PrunableLayer]) -> list[PrunableLayer]:
        """The layers that the rank loss is taken of.

        Args:
            layers: The layers to choose from.
        """
        return [layer for layer in layers if self.rank_layers == "all" or layer.kind == "conv"]

    def coefficients(self) -> tuple[Value | str, Value]:
        """λ and δ̃: as given, or the authors' at the nearest sparsity below."""
        lam, delta = PUBLISHED[max([s for s in PUBLISHED if s <= (self.sparsity or 0.0) + 1e-9], default=0.80)]
        return lam if self.lam is None else self.lam, delta if self.delta is None else self.delta
