"""Gradients: masked or mapped as they arrive, and checked before a mask update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.weak import TensorWeakRef

from .layer import PrunableLayer
from .shards import is_sharded, local

if TYPE_CHECKING:
    from .method import Latent


class GradientMask:
    """Masks a gradient as it arrives, so that clipping and norms see the sparse one; dense before a mask update."""

    def __init__(self, layer: PrunableLayer, dense_wanted: Callable[[], bool]) -> None:
        self.layer, self.dense_wanted = layer, dense_wanted
        self.seen: TensorWeakRef | None = None  # the gradient last masked, and its version then
        self.version = 0

    @torch.compiler.disable
    def __call__(self, parameter: nn.Parameter) -> None:
        if not self.dense_wanted():
            self.run()

    def run(self) -> None:
        """Mask, unless this very gradient has been masked and not been written to since."""
        if self.layer.parameter.grad is None:
            return
        grad = local(self.layer.parameter.grad)
        if self.seen is None or self.seen() is not grad or self.version != grad._version:
            self.layer.apply_mask(grad)
            self.seen, self.version = TensorWeakRef(grad), grad._version


class LatentGradient:
    """Maps the gradient of a weight to that of its latent as it arrives: clipping and norms see what the step will use.

    What a backward pass adds is mapped before it is added, by a pre-hook of the autograd node that accumulates. So
    several passes give the map of their sum, whatever is done to the gradient between them (a loss scale taken off,
    zeros written), and DDP averages what was mapped. FSDP2 adds sharded gradients up by itself: there the sum arrives,
    and what was mapped of it before is kept beside it.
    """

    def __init__(self, layer: PrunableLayer, method: Latent, arrived: Callable[[], object]) -> None:
        self.layer, self.method, self.arrived = layer, method, arrived
        self.node: Any = None
        self.handle: Any = None
        self.added = False  # the pass under way was mapped before it was added
        self.mapped = False  # a gradient has arrived since the last step
        self.seen: TensorWeakRef | None = None  # the gradient last mapped as a whole, its version then and its values
        self.version = 0
        self.before: Tensor | None = None
        self._watch()

    def remove(self) -> None:
        """Take the hook off the node that accumulates gradients."""
        if self.handle is not None:
            self.handle.remove()

    def _watch(self) -> None:
        """Register on the accumulating node; it is another one after the parameter changed its type or device."""
        parameter = self.layer.parameter
        if parameter.requires_grad and not is_sharded(parameter):
            self.remove()
            self.node = get_gradient_edge(parameter).node  # held, or it would be made anew
            self.handle = self.node.register_prehook(self._add)

    @torch.compiler.disable
    def _add(self, grads: tuple[Tensor | None, ...]) -> tuple[Tensor] | None:
        (grad,) = grads
        if grad is None or is_sharded(grad):
            return None
        self.layer.follow()
        self.added = True
        return (self.method.latent_grad(self.layer, grad),)

    @torch.compiler.disable
    @torch.no_grad()
    def __call__(self, parameter: nn.Parameter) -> None:
        self.arrived()
        if not self.added:
            self._map_sum()
            self._watch()
        self.added, self.mapped = False, True

    def run(self) -> None:
        """Just before a step: map a gradient that user code set, which is that of the effective weight."""
        if not self.mapped and self.layer.parameter.grad is not None:
            self._map_sum()
        self.mapped = False

    def _map_sum(self) -> None:
        self.layer.follow()
        grad = local(self.layer.parameter.grad)  # type: ignore[arg-type]
        same = self.seen is not None and self.seen() is grad
        if same and self.version == grad._version:
            return  # nothing was added
        if same and self.before is not None and self.version + 1 == grad._version:  # added to, and nothing else
            grad.copy_(self.before + self.method.latent_grad(self.layer, grad - self.before))
        else:
            grad.copy_(self.method.latent_grad(self.layer, grad))
        self.seen, self.version = TensorWeakRef(grad), grad._version
        self.before = grad.clone() if self.layer.shards else None


def all_finite(layers: Sequence[PrunableLayer], grads: bool = True) -> bool:
    """Whether all weights and gradients are finite, with one look at the device: a sum is not if an entry is not.

    Args:
        layers: The layers to look at.
        grads: Whether to look at their gradients too.
    """
    tensors = [t for s in layers for t in (s.parameter, s.parameter.grad if grads else None) if t is not None]
    parts = [local(t.detach()) for t in tensors]
    sums = torch.stack([p.sum(dtype=torch.float32 if p.element_size() < 4 else None).double() for p in parts])
    bad = torch.count_nonzero(~torch.isfinite(sums))
    shards = next((s.shards for s in layers if s.shards), layers[0].shards)
    return not bool(shards.sum(bad))
