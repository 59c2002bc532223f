"""Spartan (Tai et al. 2022): a soft top-k mask by regularised transport, hardened in the forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankprune.core.keywords import RampKeywords, of_plan, plan_keywords
from rankprune.core.method import Group, Latent, PrunableLayer, register
from rankprune.core.plan import Plan, Ramp, Run
from rankprune.core.schedules import Schedule, Step, as_step, linear
from rankprune.methods.shared.soft_topk import Part, price, pull_back, shares


@dataclass(frozen=True, kw_only=True)
class LinearRamp(Ramp):
    """An update at every step up to `fix_at`; the budget falls linearly from `prune_start` to `prune_end`.

    Args:
        prune_start: The step at which the budget begins to fall.
        prune_end: The step at which it is the final one.
        fix_at: The step from which on the masks stand.
    """

    prune_end: Step = 0.2
    fix_at: Step = 0.8

    def steps(self, run: Run) -> Sequence[int]:
        _, last = self.ramp(run.total_steps)
        fixed = max(as_step(self.fix_at, run.total_steps, "fix_at"), 1)
        if fixed < last:
            raise ValueError(f"fix_at={self.fix_at!r} lies before prune_end={self.prune_end!r}: the mask is fixed last")
        return range(1, min(fixed, run.total_steps) + 1)

    def curve(self, start: float, end: float, steps: int) -> Schedule:
        return linear(start, end, steps)


@plan_keywords(kw_only=True)
class LinearRampKeywords(RampKeywords):
    """The keywords of `LinearRamp`."""

    fix_at: Step = of_plan()


@register(
    "spartan", paper="Tai et al. 2022, arXiv:2205.14107", family="latent", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class Spartan(Latent, LinearRampKeywords):
    """Show the network the largest latents, each times its share in a soft top-k mask that sharpens over training.

    The share is m = σ(β (|w| - μ)), with μ such that the shares sum to the count: the solution of a transport problem
    with entropy 1/β. The forward pass keeps the `count` largest of w m and nothing else; the gradient goes straight
    through that cut and exactly through the soft mask, so that small β explores and large β settles. β rises linearly
    from `beta_start` to `beta_end` until `fix_at`, in units of 1/RMS of the latents; from there on the mask stands and
    its weights train as they are. The count falls linearly from `prune_start` to `prune_end`.

    Args:
        beta_start: β at the start, in units of 1/RMS of the latents.
        beta_end: β when the mask is fixed.
    """

    beta_start: float = 1.0
    beta_end: float = 10.0
    plan: Plan = LinearRamp()

    def __post_init__(self) -> None:
        both = (self.beta_start, self.beta_end)
        if not all(isinstance(beta, (int, float)) for beta in both) or not 0.0 < both[0] <= both[1] < math.inf:
            raise ValueError(
                f"beta_start={self.beta_start!r} and beta_end={self.beta_end!r} are no rising sharpness: "
                "give positive numbers, the second not below the first"
            )

    def update(self, group: Group) -> None:
        super().update(group)
        last = group.plan.steps[-1]
        beta = linear(self.beta_start, self.beta_end, last)(group.step)
        if self.distribution == "global":
            self._sharpen(group.layers, group.budget, beta)
        else:
            for layer in group.layers:
                self._sharpen([layer], layer.kept() * layer.cost, beta)
        if group.step >= last:
            for layer in group.layers:
                layer.state["latent"] = self.effective(layer)  # what the network sees does not jump
                del layer.state["beta"], layer.state["threshold"]

    def _sharpen(self, layers: Sequence[PrunableLayer], budget: int, beta: float) -> None:
        """Set β and μ of layers that share a budget."""
        parts = [self.part(layer) for layer in layers]
        squares = [part.sum(part.values.square().sum(dtype=torch.float64)) for part in parts]
        size = math.sqrt(sum(float(s) for s in squares) / sum(layer.numel for layer in layers))
        beta = beta / max(size, torch.finfo(torch.float32).tiny)
        mu = price(parts, budget, beta, layers[0].state.get("threshold", math.nan))
        for layer in layers:
            layer.state |= {"beta": beta, "threshold": mu}

    def part(self, layer: PrunableLayer) -> Part:
        """What the soft top-k of a layer is computed from.

        Args:
            layer: The layer.
        """
        return Part(layer.state["latent"].abs() / layer.cost, layer.cost, layer.shards)

    def effective(self, layer: PrunableLayer) -> Tensor:
        latent = layer.state["latent"]
        if "beta" not in layer.state:
            return torch.where(layer.mask, latent, 0.0)
        share = shares(latent.abs() / layer.cost, layer.state["beta"], layer.state["threshold"])
        if layer.reserved is not None:
            share = share.masked_fill_(layer.reserved, 1.0)  # weights that an extra reserves are not scaled
        return torch.where(layer.mask, latent * share, 0.0)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        if "beta" in layer.state:
            latent = layer.state["latent"]
            return pull_back(self.part(layer), latent, grad, layer.state["beta"], layer.state["threshold"])
        return torch.where(layer.mask, grad, 0.0)
