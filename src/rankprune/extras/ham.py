"""HAM, a multiplicative step after the optimizer's own (ICLR 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rankprune.core.method import Extra, PrunableLayer
from rankprune.core.shards import is_sharded, local

MAX_NORM = 1000.0  # of a tensor


@dataclass
class HAM(Extra):
    """After each optimizer step, w ← w · exp(−lr (α sign(w) g + β)): faster where |w| is large, freer near 0.

    The limit of small steps is dw = −(1 + α|w|) g dt − β w dt. Zeros stay zero. With a latent method it moves the
    latents. As in the authors' code every tensor of two dimensions or more is moved, pruned or not, and a tensor whose
    norm exceeds 1000 is scaled back to it.
    """

    name: ClassVar[str] = "ham"
    alpha: float = 200.0
    beta: float = 1e-3

    def after_step(self, layer: PrunableLayer) -> None:
        if layer.parameter.grad is not None:
            self.move(layer.weight, local(layer.parameter.grad), layer.lr)
            square = layer.weight.square().sum(dtype=torch.float64)
            _limit(layer.weight, layer.shards.sum(square))

    def after_step_dense(self, parameter: nn.Parameter, lr: float) -> None:
        if parameter.dim() >= 2 and parameter.grad is not None:
            weight = local(parameter.detach())
            self.move(weight, local(parameter.grad), lr)
            square: Any = parameter.detach().square().sum(dtype=torch.float64)
            _limit(weight, square.full_tensor() if is_sharded(square) else square)

    def move(self, weight: Tensor, grad: Tensor, lr: float) -> None:
        """Make the multiplicative step.

        Args:
            weight: The weight, changed in place.
            grad: Its gradient.
            lr: The learning rate.
        """
        exponent = weight.sign().mul_(grad).mul_(self.alpha).add_(self.beta).mul_(-lr)
        weight.mul_(exponent.clamp_(-5.0, 5.0).exp_())


def _limit(weight: Tensor, square: Tensor) -> None:
    """Scale a tensor down if its norm, given squared, exceeds MAX_NORM; without a device sync."""
    weight.mul_((MAX_NORM / square.sqrt().clamp_min(MAX_NORM)).to(weight))
