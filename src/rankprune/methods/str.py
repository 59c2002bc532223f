"""STR, soft threshold weight reparameterization (Kusupati et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rankprune.core.keywords import RampKeywords
from rankprune.core.method import Group, PrunableLayer, register
from rankprune.core.plan import Ramp
from rankprune.core.schedules import cubic
from rankprune.methods.shared.threshold import Thresholded

FIRST_DENSITY = 0.8  # at the start, unless `s_init` is given


@register(
    "str", paper="Kusupati et al. 2020, arXiv:2002.03231", family="latent", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class STR(Thresholded, RampKeywords):
    """Each layer learns its own soft threshold g(s) by gradient, g the sigmoid; what is below it gets no gradient.

    Until `prune_start` this is the original: s takes the steps that the layer's optimizer would make with it, and the
    count is what comes of that. From there on one number c is added to every s, such that exactly the scheduled count
    has |w| > g(s + c), that is logit|w| - s > c: layers compete through the s they learn, and the end is exact.

    Args:
        s_init: The parameter s of each layer's threshold at the start; None: a fifth of all weights is below it.
    """

    trains_cut: ClassVar[bool] = False

    plan: Ramp = Ramp(prune_start=0.4, prune_end=0.8)
    s_init: float | None = None

    def start(self, group: Group) -> None:
        super().start(group)
        for layer in group.layers:
            names = ("s", "slope", "velocity", "square")
            layer.state |= {key: layer.weight.new_zeros(()) for key in names} | {"steps": 0}
        if self.s_init is None:
            self.cut_to(group, round(FIRST_DENSITY * group.total))
        for layer in group.layers:
            s = torch.logit(layer.state["threshold"], eps=1e-7) if self.s_init is None else self.s_init
            layer.state["s"].fill_(s)
        self.apply_thresholds(group)
        group.state["free"] = group.budget
        for layer in group.layers:
            layer.weight.copy_(self.effective(layer))  # the first forward pass is that of the original

    def score(self, layer: PrunableLayer) -> Tensor:
        size = torch.logit(layer.state["latent"].abs(), eps=1e-7).sub_(layer.state["s"])
        return size if self.budget == "weights" else size.exp_()  # what is divided by a cost must be positive

    def latent_at(self, layer: PrunableLayer, score: Tensor) -> Tensor:
        size = score if self.budget == "weights" else score.clamp_min(0.0).log()
        return torch.sigmoid(layer.state["s"] + size)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        """∂L/∂W is ∂L/∂Ŵ above the threshold."""
        return torch.where(layer.mask, grad, 0.0)

    def note_grad(self, layer: PrunableLayer) -> None:
        """∂L/∂s = -g'(s) Σ sign(W) ∂L/∂Ŵ over what is above the threshold."""
        pull, threshold = (layer.grad * layer.state["latent"].sign()).sum(), layer.state["threshold"]
        layer.state["slope"] = -threshold * (1 - threshold) * layer.shards.sum(pull)

    def update(self, group: Group) -> None:
        for layer in group.layers:
            _take_step(layer)
        first, last = self.plan.ramp(group.total_steps)
        if group.step <= first and group.step < last:
            self.apply_thresholds(group)
            group.state["free"] = group.budget
        else:
            self.cut_to(group, self._ramp_budget(group))

    def _ramp_budget(self, group: Group) -> int:
        """The budget along a cubic, from the count of the learned thresholds at `prune_start` to the final one."""
        first, last = self.plan.ramp(group.total_steps)
        if group.step >= last:
            return group.final
        return round(cubic(group.state["free"], group.final, last - first)(group.step - first))

    def apply_thresholds(self, group: Group) -> None:
        """Keep what is above g(s), and at least the largest weight of a layer.

        Args:
            group: The layers that the method works on.
        """
        for layer in group.layers:
            layer.state["threshold"] = torch.sigmoid(layer.state["s"])
            layer.mask.copy_(layer.state["latent"].abs() > layer.state["threshold"])
            if layer.reserved is not None:
                layer.mask.logical_or_(layer.reserved)
            if not layer.kept():
                layer.mask.copy_(group.keep(layer, self.score, 1))
        group.budget = group.spent()


def _take_step(layer: PrunableLayer) -> None:
    """One step of s along its gradient, by the rule of the optimizer of the layer's weight: SGD or Adam."""
    settings: dict[str, Any] = layer.optimizer.param_groups[layer.param_group] if layer.optimizer else {}
    s, slope, decay, lr = layer.state["s"], layer.state["slope"], settings.get("weight_decay", 0.0), layer.lr
    layer.state["steps"] += 1
    layer.state["slope"] = torch.zeros_like(s)
    if "betas" not in settings:
        momentum, slope = settings.get("momentum", 0.0), slope + decay * s
        velocity = layer.state["velocity"].mul_(momentum).add_(slope)
        s.sub_(slope + momentum * velocity if settings.get("nesterov") else velocity, alpha=lr)
        return
    coupled = type(layer.optimizer) is torch.optim.Adam and not settings.get("decoupled_weight_decay")
    if coupled:
        slope = slope + decay * s
    else:
        s.mul_(1 - lr * decay)
    first, second = settings["betas"]
    velocity = layer.state["velocity"].lerp_(slope, 1 - first) / (1 - first ** layer.state["steps"])
    square = layer.state["square"].lerp_(slope.square(), 1 - second) / (1 - second ** layer.state["steps"])
    s.sub_(velocity / (square.sqrt() + settings.get("eps", 1e-8)), alpha=lr)
