"""The form in which a method holds its weights: masked, masked with dense optimizer state, or as latents.

A form answers what an optimizer step needs to know and do for each layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.weak import TensorWeakRef

from .clock import grad_scale
from .layer import PrunableLayer
from .shards import is_sharded, local

if TYPE_CHECKING:
    from .method import Latent

Hook = TypeVar("Hook", bound=Callable[..., Any])


def not_compiled(hook: Hook) -> Hook:
    """`torch.compiler.disable`, applied when the hook is first called: it imports Dynamo, which takes a second.

    Args:
        hook: A function that `torch.compile` must not trace.
    """
    disabled: Callable[..., Any] | None = None

    @functools.wraps(hook)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            disabled = torch.compiler.disable(hook)
        return disabled(*args, **kwargs)

    return cast(Hook, run)


class GradientMask:
    """Masks a gradient as it arrives, so that clipping and norms see the sparse one; dense before a mask update."""

    def __init__(self, layer: PrunableLayer, dense_wanted: Callable[[], bool]) -> None:
        self.layer, self.dense_wanted = layer, dense_wanted
        self.seen: TensorWeakRef | None = None  # the gradient last masked, and its version then
        self.version = 0

    @not_compiled
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

    @not_compiled
    def _add(self, grads: tuple[Tensor | None, ...]) -> tuple[Tensor] | None:
        (grad,) = grads
        if grad is None or is_sharded(grad):
            return None
        self.layer.follow()
        self.added = True
        return (self.method.latent_grad(self.layer, grad),)

    @not_compiled
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


GradientHook = GradientMask | LatentGradient


class MaskedForm:
    """Weight, gradient and optimizer state are zero outside the mask."""

    holds_latents: ClassVar[bool] = False

    def __init__(self, method: Any) -> None:
        """Each group has a form of its own, made with its method."""

    def gradient_hook(
        self, layer: PrunableLayer, wants_dense: Callable[[], bool], arrived: Callable[[], object]
    ) -> GradientHook:
        """What is called when a gradient of the layer arrives.

        Args:
            layer: The layer.
            wants_dense: Tells whether the step that the gradient is for needs it dense.
            arrived: To be called when a gradient arrives, by hooks that do not ask `wants_dense`.
        """
        return GradientMask(layer, wants_dense)

    def wants_dense(self, update_due: Callable[[], bool]) -> bool:
        """Whether the next step needs the dense gradient.

        Args:
            update_due: Tells whether a mask update is due at the next step.
        """
        return update_due()

    def before(self, layer: PrunableLayer, gradient: GradientHook, updating: bool) -> None:
        """Called before the optimizer steps the layer.

        Args:
            layer: The layer.
            gradient: The hook that `gradient_hook` made for it.
            updating: Whether masks are updated in this step.
        """
        if not updating:
            gradient.run()

    def after(self, layer: PrunableLayer, updating: bool, keeps_zeros: bool) -> None:
        """Called after the optimizer has stepped the layer.

        Args:
            layer: The layer.
            updating: Whether masks are updated in this step.
            keeps_zeros: Whether the optimizer leaves a weight at 0 whose gradient and state are 0.
        """
        if updating or not keeps_zeros:
            layer.apply_mask_to_weight_and_state()

    def show(self, layer: PrunableLayer) -> None:
        """Put into the weight what the network is to see, where that is not the weight itself.

        Args:
            layer: The layer.
        """

    def restore(self, layer: PrunableLayer) -> None:
        """Zeros outside the mask again, after the mask has changed.

        Args:
            layer: The layer.
        """
        layer.apply_mask_to_weight_and_state()

    def follow(self, layer: PrunableLayer, rewritten: bool) -> None:
        """Zeros outside the mask again, after others may have written (`rewritten`: have replaced) the weight.

        Args:
            layer: The layer.
            rewritten: Whether the weight was replaced, by a checkpoint say.
        """
        self.restore(layer)


class DenseStateForm(MaskedForm):
    """The weight is zero outside the mask; gradients and optimizer state stay dense (SNFS)."""

    def wants_dense(self, update_due: Callable[[], bool]) -> bool:
        return True

    def before(self, layer: PrunableLayer, gradient: GradientHook, updating: bool) -> None:
        pass

    def after(self, layer: PrunableLayer, updating: bool, keeps_zeros: bool) -> None:
        layer.apply_mask(layer.weight)

    def restore(self, layer: PrunableLayer) -> None:
        layer.apply_mask(layer.weight)


class LatentForm(MaskedForm):
    """The optimizer steps a dense latent, which takes the weight's place while it does; the network sees its image."""

    holds_latents: ClassVar[bool] = True

    def __init__(self, method: Latent) -> None:
        self.method = method

    def gradient_hook(
        self, layer: PrunableLayer, wants_dense: Callable[[], bool], arrived: Callable[[], object]
    ) -> GradientHook:
        return LatentGradient(layer, self.method, arrived)

    def before(self, layer: PrunableLayer, gradient: GradientHook, updating: bool) -> None:
        gradient.run()
        layer.grad_scale = grad_scale(layer.optimizer)
        self.method.note_grad(layer)
        layer.grad_scale = None
        layer.weight.copy_(layer.state["latent"])

    def after(self, layer: PrunableLayer, updating: bool, keeps_zeros: bool) -> None:
        layer.state["latent"].copy_(layer.weight)

    def show(self, layer: PrunableLayer) -> None:
        layer.weight.copy_(self.method.effective(layer))

    def restore(self, layer: PrunableLayer) -> None:
        """The image follows at the end of the step."""

    def follow(self, layer: PrunableLayer, rewritten: bool) -> None:
        # A weight that was swapped out and back still is the latent's image.
        if rewritten and not torch.equal(layer.weight, self.method.effective(layer)):
            self.method.follow(layer)
        layer.apply_mask(layer.weight)
