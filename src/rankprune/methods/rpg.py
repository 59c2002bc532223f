"""RPG, rank-based pruning (Tian et al., NeurIPS 2023)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from rankprune.core.method import DropGrow, Group, PrunableLayer, register
from rankprune.core.plan import Gradual, Plan
from rankprune.core.schedules import Value, check_every
from rankprune.methods.shared.rank_term import RankTerm, check_lam

# λ and δ̃ of the authors' ImageNet runs; between them the nearest listed sparsity below holds.
PUBLISHED = {0.80: (0.5, 0.2), 0.90: (0.5, 0.1), 0.95: (3.0, 0.2), 0.98: (4.0, 0.2)}


@register("rpg", paper="Tian et al. 2023, arXiv:2311.17493", family="drop and grow", needs=("grad",))
@dataclass(kw_only=True)
class RPG(DropGrow):
    """Gradual global magnitude pruning that regrows by the gradient of task loss + λ · rank loss.

    Global magnitude sets what each layer keeps, then each layer drops and regrows a share of it (Algorithm 1).
    The rank loss (eq. 2) is minus the squared distance of a normalised weight matrix to its best rank-k approximation.
    """

    plan: Plan = Gradual()
    lam: Value | str | None = None  # λ, or "ratio:R" of the task gradient
    delta: Value | None = None  # δ̃
    rank_on: Literal["growth", "weights", "both"] = "growth"  # what the rank term steers
    rank_every: int = 10  # with rank_on="weights" or "both": steps between rank gradients
    rank_reduction: Literal["mean", "sum"] = "mean"  # the code's; the paper writes a sum
    rank_layers: Literal["conv", "all"] = "conv"
    rank_signal: Literal["rank", "noise"] = "rank"  # noise: a control, not a method

    def __post_init__(self) -> None:
        choices = {
            "rank_on": ("growth", "weights", "both"), "rank_reduction": ("mean", "sum"), "rank_layers": ("conv", "all"),
            "rank_signal": ("rank", "noise"),
        }  # fmt: skip
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: use {' or '.join(map(repr, allowed))}")
        check_lam(self.lam)
        delta = self.delta
        if delta is not None and not callable(delta) and not (isinstance(delta, (int, float)) and 0.0 <= delta <= 1.0):
            raise ValueError(f"delta={delta!r} is not a number from 0 to 1: give one, or a schedule")
        check_every(self.rank_every, "rank_every")

    def replaces_optimizer_step(self) -> bool:
        return self.grow != 0  # without growth it is plain gradual pruning, and the step is taken

    def update(self, group: Group) -> None:
        """Algorithm 1: the rank gradients of the weights as they are, then gradual pruning with growth by them."""
        term, steered = self.rank_term(), self._steered(group.layers)
        if not steered:
            warnings.warn("no convolution among the prunable weights: pass rank_layers='all'", stacklevel=2)
        if self.rank_on != "weights" and self.replaces_optimizer_step() and term.active(group.step):
            for layer, grad in zip(steered, term.of(steered, lambda s: ~s.mask, group.step, group.model)):
                layer.temp["rank_grad"] = grad
        super().update(group)

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        """|∂(task loss + λ · rank loss)/∂w|, of the weights as they were when the update began."""
        rank_grad = layer.temp.get("rank_grad")
        return layer.grad.abs() if rank_grad is None else rank_grad.add(layer.grad).abs_()

    def before_every(self) -> int:
        return 0 if self.rank_on == "growth" else self.rank_every

    def before_step(self, layers: Sequence[PrunableLayer], group: Group, step: int) -> None:
        """Train the active weights by the rank loss too: the objective L_task + λ L_rank as the paper writes it."""
        term, steered = self.rank_term(), [s for s in self._steered(layers) if s.parameter.grad is not None]
        if term.active(step):
            for layer, grad in zip(steered, term.of(steered, lambda s: s.mask, step, group.model)):
                layer.add_gradient(grad.mul_(layer.mask))

    def rank_term(self) -> RankTerm:
        """λ and δ̃, by default the authors', with what they act on."""
        assert self.sparsity is not None
        published = PUBLISHED[max([s for s in PUBLISHED if s <= self.sparsity + 1e-9], default=0.80)]
        lam = published[0] if self.lam is None else self.lam
        delta = published[1] if self.delta is None else self.delta
        return RankTerm(lam, delta, self.rank_reduction, self.rank_signal)

    def _steered(self, layers: Sequence[PrunableLayer]) -> list[PrunableLayer]:
        return [layer for layer in layers if self.rank_layers == "all" or layer.kind == "conv"]
