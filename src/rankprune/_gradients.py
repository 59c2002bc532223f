"""Gradients: masked as they arrive, and checked before a mask update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from ._sharding import local
from ._site import Site


class GradientMask:
    """Masks a gradient as it arrives, so that clipping and norms see the sparse one; dense before a mask update."""

    def __init__(self, site: Site, dense_wanted: Callable[[], bool]) -> None:
        self.site, self.dense_wanted = site, dense_wanted
        self.seen: TensorWeakRef | None = None  # the gradient last masked, and its version then
        self.version = 0

    @torch.compiler.disable
    def __call__(self, parameter: nn.Parameter) -> None:
        if not self.dense_wanted():
            self.run()

    def run(self) -> None:
        """Mask, unless this very gradient has been masked and not been written to since."""
        if self.site.parameter.grad is None:
            return
        grad = local(self.site.parameter.grad)
        if self.seen is None or self.seen() is not grad or self.version != grad._version:
            self.site.hide(grad)
            self.seen, self.version = TensorWeakRef(grad), grad._version


def all_finite(sites: Sequence[Site]) -> bool:
    """Whether all weights and gradients are finite, with one look at the device: a sum is not if an entry is not."""
    parts = [local(t.detach()) for s in sites for t in (s.parameter, s.parameter.grad) if t is not None]
    sums = torch.stack([p.sum(dtype=torch.float32 if p.element_size() < 4 else None).double() for p in parts])
    bad = torch.count_nonzero(~torch.isfinite(sums))
    shards = next((s.shards for s in sites if s.shards), None)
    return not bool(shards.sum(bad) if shards else bad)
