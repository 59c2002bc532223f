"""HAM, a multiplicative step after the optimizer's own (ICLR 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .._sharding import local
from ..method import Extra, Site


@dataclass
class HAM(Extra):
    """After each optimizer step, w ← w · exp(−lr (α sign(w) g + β)): faster where |w| is large, freer near 0.

    The limit of small steps is dw = −(1 + α|w|) g dt − β w dt. Zeros stay zero. A latent method has its latents moved.
    """

    name: ClassVar[str] = "ham"
    alpha: float = 200.0
    beta: float = 1e-3

    def after_step(self, site: Site) -> None:
        if site.parameter.grad is None:
            return
        weight, grad = site.weight, local(site.parameter.grad)
        exponent = weight.sign().mul_(grad).mul_(self.alpha).add_(self.beta).mul_(-site.lr)
        weight.mul_(exponent.clamp_(-5.0, 5.0).exp_())
