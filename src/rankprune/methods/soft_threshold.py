"""STR, soft threshold weight reparameterization (Kusupati et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..method import Group, Site, register
from ._threshold import Thresholded


@register(
    "str", paper="Kusupati et al. 2020, arXiv:2002.03231", family="latent", needs=("grad",),
    state="a latent a weight, one threshold a layer", defaults={"cifar": {}, "imagenet": {}},
)  # fmt: skip
@dataclass
class STR(Thresholded):
    """Each layer learns its own soft threshold g(s) by gradient, g the sigmoid; what is below it gets no gradient.

    The sparsity of the original is what weight decay on s makes of it. Here a controller adds one number c to every s,
    at each step, so that exactly the scheduled count has |w| > g(s + c), that is logit|w| - s > c: layers still compete
    through the s they learn (SGD with the weight's own learning rate, momentum and decay), and the count is exact.
    """

    trains_cut: ClassVar[bool] = False

    def start(self, group: Group) -> None:
        super().start(group)
        for site in group.sites:
            site.state |= {key: site.weight.new_zeros(()) for key in ("s", "slope", "velocity")}

    def score(self, site: Site) -> Tensor:
        size = torch.logit(site.state["latent"].abs(), eps=1e-7).sub_(site.state["s"])
        return size if self.budget == "weights" else size.exp_()  # what is divided by a cost must be positive

    def latent_at(self, site: Site, score: Tensor) -> Tensor:
        size = score if self.budget == "weights" else score.clamp_min(0.0).log()
        return torch.sigmoid(site.state["s"] + size)

    def latent_grad(self, site: Site, grad: Tensor) -> Tensor:
        """∂L/∂W is ∂L/∂Ŵ above the threshold."""
        return torch.where(site.mask, grad, 0.0)

    def note_grad(self, site: Site) -> None:
        """∂L/∂s = -g'(s) Σ sign(W) ∂L/∂Ŵ over what is above the threshold."""
        pull, threshold = (site.grad * site.state["latent"].sign()).sum(), site.state["threshold"]
        site.state["slope"] = -threshold * (1 - threshold) * (site.shards.sum(pull) if site.shards else pull)

    def update(self, group: Group) -> None:
        for site in group.sites:
            settings = site.optimizer.param_groups[site.param_group] if site.optimizer else {}
            s, velocity = site.state["s"], site.state["velocity"]
            velocity.mul_(settings.get("momentum", 0.0)).add_(site.state["slope"])
            velocity.add_(s, alpha=settings.get("weight_decay", 0.0))
            s.sub_(velocity, alpha=site.lr)
            site.state["slope"] = torch.zeros_like(s)
        super().update(group)
