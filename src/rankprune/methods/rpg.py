"""RPG, rank-based pruning (Tian et al., NeurIPS 2023)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from .._site import seeded
from ..method import DropGrow, Gradual, Group, Site, register
from ..schedules import Value, value_at
from ._rank_work import rank_gradients

# λ and δ̃ of the authors' ImageNet runs; between them the nearest listed sparsity below holds.
PUBLISHED = {0.80: (0.5, 0.2), 0.90: (0.5, 0.1), 0.95: (3.0, 0.2), 0.98: (4.0, 0.2)}


@register("rpg", paper="Tian et al. 2023, arXiv:2311.17493", family="drop and grow", needs=("grad",))
@dataclass
class RPG(Gradual, DropGrow):
    """Gradual global magnitude pruning that regrows by the gradient of task loss + λ · rank loss.

    Global magnitude sets what each layer keeps, then each layer drops and regrows a share of it (Algorithm 1).
    The rank loss (eq. 2) is minus the squared distance of a normalised weight matrix to its best rank-k approximation.
    """

    instead: ClassVar[bool] = True
    lam: Value | None = field(default=None, kw_only=True)
    delta: Value | None = field(default=None, kw_only=True)
    rank_reduction: Literal["mean", "sum"] = field(default="mean", kw_only=True)  # the code's; the paper writes a sum
    rank_layers: Literal["conv", "all"] = field(default="conv", kw_only=True)
    rank_signal: Literal["rank", "noise"] = field(default="rank", kw_only=True)  # noise: a control, not a method

    def __post_init__(self) -> None:
        choices = {"rank_reduction": ("mean", "sum"), "rank_layers": ("conv", "all"), "rank_signal": ("rank", "noise")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: use {' or '.join(map(repr, allowed))}")
        for name, most in (("lam", math.inf), ("delta", 1.0)):
            value = getattr(self, name)
            given = value is not None and not callable(value)
            if given and not (isinstance(value, (int, float)) and 0.0 <= value <= most):
                raise ValueError(f"{name}={value!r} is not a number from 0 to {most:g}: give one, or a schedule")

    def replaces_step(self) -> bool:
        return self.grow != 0  # without growth it is plain gradual pruning, and the step is taken

    def update(self, group: Group) -> None:
        steered = [site for site in group.sites if self.rank_layers == "all" or site.kind == "conv"]
        if not steered:
            warnings.warn("no convolution among the prunable weights: pass rank_layers='all'", stacklevel=2)
        lam, delta = (value_at(value, group.step) for value in self.coefficients())
        if lam and self.replaces_step():
            set_rank_gradients(steered, lam, delta, self.rank_reduction, group.model)
            for site in steered if self.rank_signal == "noise" else ():
                site.scratch = noise_like(site)
        super().update(group)

    def grow_score(self, site: Site) -> Tensor:
        """|∂(task loss + λ · rank loss)/∂w|, of the weights as they were when the update began."""
        return site.grad.abs() if site.scratch is None else site.scratch.add_(site.grad).abs_()

    def coefficients(self) -> tuple[Value, Value]:
        """λ and δ̃; by default those of the authors."""
        assert self.sparsity is not None
        lam, delta = PUBLISHED[max([s for s in PUBLISHED if s <= self.sparsity + 1e-9], default=0.80)]
        return lam if self.lam is None else self.lam, delta if self.delta is None else self.delta


def set_rank_gradients(
    sites: Sequence[Site], lam: float, delta: float, reduction: str, model: nn.Module | None = None
) -> None:
    """λ times the gradient of the network's rank loss into each site's scratch; an empty layer does not count."""
    layers = sum(site.count(site.weight) > 0 for site in sites) if reduction == "mean" else 1
    for site, grad in zip(sites, rank_gradients(sites, delta, model)):
        site.scratch = grad.mul_(lam / max(layers, 1))


def noise_like(site: Site) -> Tensor:
    """Normal noise with the root mean square that the rank gradient has where the weight is out and could be grown."""
    grad, out = site.whole(cast(Tensor, site.scratch)), site.whole(~site.mask)
    size = (grad[out] if bool(out.any()) else grad).square().mean().sqrt()
    noise = torch.randn(grad.shape, generator=seeded(site.seed, site.step, f"{site.key}/noise"))
    return site.part(noise.to(grad) * size)
