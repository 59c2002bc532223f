"""Feather (Glentis Georgoulakis et al. 2023): a better threshold and straight-through gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rankprune.core.keywords import RampKeywords
from rankprune.core.method import PrunableLayer, register
from rankprune.methods.shared.threshold import Thresholded


@register(
    "feather", paper="Glentis Georgoulakis et al. 2023, arXiv:2310.02448", family="latent", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class Feather(Thresholded, RampKeywords):
    """Show the network sign(w) (|w|³ - T³)^(1/3) above one global threshold T, and train all latents w.

    Nearly unbiased for large weights, yet continuous at T. The gradient passes straight to all latents, to those below
    T times `theta`: 1 up to a sparsity of 95 %, and 0.5 above, where full gradients would let weights churn.

    Args:
        p: The power of the threshold function; 1 is the soft threshold, large values the hard one.
        theta: θ, the factor of the gradients below the threshold; None: 1 up to a sparsity of 95 %, 0.5 above.
    """

    p: float = 3.0
    theta: float | None = None

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        return layer.copy_kept(grad * self._below(), grad)

    def _below(self) -> float:
        assert self.sparsity is not None
        return self.theta if self.theta is not None else 1.0 if self.sparsity <= 0.95 else 0.5
