"""Deep Rewiring and Soft Deep Rewiring (Bellec et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankprune.core.keywords import EveryStepKeywords
from rankprune.core.method import Group, Method, PrunableLayer, register
from rankprune.core.plan import EveryStep, Plan
from rankprune.core.schedules import Value, value_at

NEWBORN = 1e-12  # what a woken weight starts at: its sign must be defined


@register(
    "deepr", paper="Bellec et al. 2018, arXiv:1711.05136", family="drop and grow",
)  # fmt: skip
@dataclass(kw_only=True)
class DeepR(Method, EveryStepKeywords):
    """A weight that would change its sign falls dormant and a random dormant one wakes, at every step.

    Each position has a fixed sign, that of its first weight, and w = sign · θ. After the optimizer step θ shrinks by
    lr · l1 and shakes by lr · noise · N(0, 1); θ <= 0 is dormant. `soft`: none is woken at random; dormant θ walk on,
    never below a wall that makes the right share active on average, and the last update takes the exact count.

    Args:
        soft: Whether dormant weights walk on (Soft DeepR) or one drawn at random wakes for each that falls dormant.
        l1: The strength of the L1 pull on θ, times the learning rate at each step.
        noise: σ, the size of the random walk, times the learning rate at each step; a number or a schedule.
    """

    distribution: str = "erk"
    soft: bool = False
    l1: float = 1e-5
    noise: Value = 1e-5
    plan: Plan = EveryStep(update_end=0.95)

    def check(self) -> None:
        if self.soft and not (self.l1 > 0 and (callable(self.noise) or self.noise > 0)):
            raise ValueError(f"soft DeepR needs l1 and noise above 0, not l1={self.l1} and noise={self.noise}")

    def start(self, group: Group) -> None:
        group.budget = group.final
        for layer, count in zip(group.layers, group.counts(PrunableLayer.random, group.budget)):
            layer.mask.copy_(group.keep(layer, PrunableLayer.random, count))
            layer.state["sign"] = torch.where(layer.weight < 0, -1, 1).to(torch.int8)
            layer.state["count"] = count
            if self.soft:
                # Dormant θ start spread evenly down to the wall, as if they had walked there already, in units of the
                # distance to the wall, which is not known before the first step.
                layer.state["theta"] = -layer.random("dormant").to(layer.weight)
                layer.state["wall"] = 1.0

    def reached_at(self, group: Group) -> int:
        return group.plan.steps[-1] if self.soft else 0  # the hard form is exact from the start

    def update(self, group: Group) -> None:
        for layer in group.layers:
            theta = self._walked(layer)
            if not self.soft:
                self._rewire(group, layer, theta)
            elif group.step < group.plan.steps[-1]:
                self._write(layer, theta, theta > 0)
            else:
                self._write(layer, theta, group.keep(layer, lambda _: theta, layer.state["count"]))  # noqa: B023
        group.budget = group.spent()

    def _walked(self, layer: PrunableLayer) -> Tensor:
        """θ after decay and noise: of the active weights, and in the soft form of the dormant ones too."""
        theta, rate, scale = layer.state["sign"] * layer.weight, layer.lr, value_at(self.noise, layer.step)
        theta.sub_(rate * self.l1)
        wall = self._wall(layer, rate, scale) if self.soft else 0.0
        if self.soft:
            theta = torch.where(layer.mask, theta, self._rescaled(layer, wall))
        if scale:
            theta.add_(layer.normal("walk"), alpha=rate * scale)
        return theta.clamp_min_(-wall) if self.soft else theta

    def _wall(self, layer: PrunableLayer, rate: float, scale: float) -> float:
        """How far below 0 dormant θ are stopped, such that the right share is active on average.

        The stationary density of θ is exp(-βθ) above 0, with β = l1/T and T = lr σ²/2: mass 1/β. Below 0 it is 1, with
        mass `wall`.
        """
        share = layer.state["count"] / layer.numel
        return (1 - share) / share * rate * scale**2 / (2 * self.l1)

    def _rescaled(self, layer: PrunableLayer, wall: float) -> Tensor:
        """Dormant θ, rescaled with the wall, which changes with the learning rate and the noise."""
        previous = layer.state["wall"]
        if wall <= 0:  # the learning rate or the noise is 0: they do not move
            return layer.state["theta"]
        layer.state["wall"] = wall
        return layer.state["theta"] * (wall / previous)

    def _rewire(self, group: Group, layer: PrunableLayer, theta: Tensor) -> None:
        """Weights with θ <= 0 fall dormant; as many wake at random, with their own sign and almost 0."""
        alive = layer.mask & (theta > 0)
        missing = layer.state["count"] - layer.count(alive)
        self._write(layer, theta, alive)
        if missing:
            layer.apply_mask_to_weight_and_state()  # one that wakes at once has no momentum left
            woken = group.keep(layer, PrunableLayer.random, missing, without=alive)
            self._write(layer, theta.masked_fill_(woken, 0.0), alive | woken)

    def _write(self, layer: PrunableLayer, theta: Tensor, mask: Tensor) -> None:
        layer.mask.copy_(mask)
        layer.weight.copy_(layer.state["sign"] * theta.clamp_min(NEWBORN))
        layer.apply_mask(layer.weight)
        if self.soft:
            layer.state["theta"] = theta
