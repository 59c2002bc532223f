"""The form in which a method holds its weights: masked, masked with dense optimizer state, or as latents.

A form answers what an optimizer step needs to know and do for each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from .gradients import GradientMask, LatentGradient
from .layer import PrunableLayer
from .optimizers import grad_scale

if TYPE_CHECKING:
    from .method import Latent

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
