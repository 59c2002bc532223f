"""The form in which a method stores its weights: masked, masked with dense optimizer state, or as latents.

A form defines what is done to a layer when its gradient arrives, and before and after an optimizer step.
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
    """Masks a gradient as it arrives, so that clipping and norms see the sparse one, unless the step needs it dense."""

    def __init__(self, layer: PrunableLayer, wants_dense: Callable[[], bool]) -> None:
        self.layer, self.wants_dense = layer, wants_dense
        self.masked: TensorWeakRef | None = None  # the gradient that was masked last, and its version then
        self.version = 0

    @not_compiled
    def __call__(self, parameter: nn.Parameter) -> None:
        if not self.wants_dense():
            self.run()

    def run(self) -> None:
        """Mask the gradient, unless it has been masked and not been written to since."""
        if self.layer.parameter.grad is None:
            return
        grad = local(self.layer.parameter.grad)
        if self.masked is None or self.masked() is not grad or self.version != grad._version:
            self.layer.apply_mask(grad)
            self.masked, self.version = TensorWeakRef(grad), grad._version


class LatentGradient:
    """Maps the gradient of a weight to that of its latent as it arrives: clipping and norms see what the step will use.

    The gradient of each backward pass is mapped before it is accumulated, by a pre-hook on the autograd node that
    accumulates. The map is linear, so the sum over several passes is right whatever is done to the gradient between
    them (unscaling, zeroing), and DDP averages mapped gradients. FSDP2 accumulates sharded gradients itself: there the
    sum arrives, and the part of it that was mapped before is kept in `mapped_before`.
    """

    def __init__(self, layer: PrunableLayer, method: Latent, arrived: Callable[[], object]) -> None:
        self.layer, self.method, self.arrived = layer, method, arrived
        self.node: Any = None
        self.handle: Any = None
        self.premapped = False  # the gradient of the pass under way was mapped before it was accumulated
        self.mapped = False  # a gradient has arrived, and was mapped, since the last step
        self.last: TensorWeakRef | None = None  # the accumulated gradient that was mapped last, and its version then
        self.version = 0
        self.mapped_before: Tensor | None = None  # its values then, under FSDP2
        self._register()

    def remove(self) -> None:
        """Take the hook off the node that accumulates gradients."""
        if self.handle is not None:
            self.handle.remove()

    def _register(self) -> None:
        """Register on the accumulating node, which is a new one after the parameter changed its dtype or device."""
        parameter = self.layer.parameter
        if parameter.requires_grad and not is_sharded(parameter):
            self.remove()
            self.node = get_gradient_edge(parameter).node  # a reference, since autograd would create it again
            self.handle = self.node.register_prehook(self._map_pass)

    @not_compiled
    def _map_pass(self, grads: tuple[Tensor | None, ...]) -> tuple[Tensor] | None:
        (grad,) = grads
        if grad is None or is_sharded(grad):
            return None
        self.layer.match_weight()
        self.premapped = True
        return (self.method.latent_grad(self.layer, grad),)

    @not_compiled
    @torch.no_grad()
    def __call__(self, parameter: nn.Parameter) -> None:
        self.arrived()
        if not self.premapped:
            self._map_sum()
            self._register()
        self.premapped, self.mapped = False, True

    def run(self) -> None:
        """Called just before a step: map a gradient that user code assigned, which no hook has seen."""
        if not self.mapped and self.layer.parameter.grad is not None:
            self._map_sum()
        self.mapped = False

    def _map_sum(self) -> None:
        self.layer.match_weight()
        grad = local(self.layer.parameter.grad)  # type: ignore[arg-type]
        same = self.last is not None and self.last() is grad
        if same and self.version == grad._version:
            return  # nothing was added
        if same and self.mapped_before is not None and self.version + 1 == grad._version:  # one write: an addition
            grad.copy_(self.mapped_before + self.method.latent_grad(self.layer, grad - self.mapped_before))
        else:
            grad.copy_(self.method.latent_grad(self.layer, grad))
        self.last, self.version = TensorWeakRef(grad), grad._version
        self.mapped_before = grad.clone() if self.layer.shards else None


GradientHook = GradientMask | LatentGradient


class MaskedForm:
    """Weight, gradient and optimizer state are zero outside the mask."""

    holds_latents: ClassVar[bool] = False

    def __init__(self, method: Any) -> None:
        """Called by each group with its method."""

    def gradient_hook(
        self, layer: PrunableLayer, wants_dense: Callable[[], bool], arrived: Callable[[], object]
    ) -> GradientHook:
        """The hook that is called when a gradient of the layer arrives.

        Args:
            layer: The layer.
            wants_dense: Returns whether the step that the gradient is for needs it dense.
            arrived: Must be called when a gradient arrives, by hooks that do not call `wants_dense`.
        """
        return GradientMask(layer, wants_dense)

    def wants_dense(self, update_due: Callable[[], bool]) -> bool:
        """Whether the next step needs the dense gradient.

        Args:
            update_due: Returns whether a mask update is due at the next step.
        """
        return update_due()

    def before(self, layer: PrunableLayer, gradient: GradientHook, updating: bool) -> None:
        """Called before the optimizer steps the layer.

        Args:
            layer: The layer.
            gradient: The hook that `gradient_hook` returned for it.
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

    def write_effective(self, layer: PrunableLayer) -> None:
        """Write the effective weight into the parameter, if the optimizer steps something else.

        Args:
            layer: The layer.
        """

    def restore(self, layer: PrunableLayer) -> None:
        """Write zeros outside the mask, after the mask has changed.

        Args:
            layer: The layer.
        """
        layer.apply_mask_to_weight_and_state()

    def resync(self, layer: PrunableLayer, rewritten: bool) -> None:
        """Write zeros outside the mask, after other code may have written to the weight or the optimizer's state.

        Args:
            layer: The layer.
            rewritten: Whether the weight was written to, by loading a checkpoint for example.
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
    """The optimizer steps a dense latent; between steps the parameter holds the effective weight, a function of it."""

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

    def write_effective(self, layer: PrunableLayer) -> None:
        layer.weight.copy_(self.method.effective(layer))

    def restore(self, layer: PrunableLayer) -> None:
        """Nothing: the effective weight is written at the end of the step."""

    def resync(self, layer: PrunableLayer, rewritten: bool) -> None:
        # A weight that was replaced and put back (by an EMA, say) still belongs to the latent.
        if rewritten and not torch.equal(layer.weight, self.method.effective(layer)):
            self.method.reset_latent(layer)
        layer.apply_mask(layer.weight)
