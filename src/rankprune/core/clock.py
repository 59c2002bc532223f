"""The optimizer steps taken, the step under way, and what can be read from the optimizer during a step."""

from __future__ import annotations

import bisect
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from .group import Group
    from .layer import PrunableLayer


class Clock:
    """Counts the steps taken, without a device sync on ordinary steps.

    A fused optimizer under a GradScaler leaves a flag on the device that says whether it skipped the step. The flags
    are summed there, and the sum is read only when a mask update may be due.
    """

    def __init__(self) -> None:
        self._confirmed = 0
        self._pending = 0  # steps with a flag that has not been read
        self._skips: Tensor | None = None  # the sum of those flags, on the device

    @property
    def steps(self) -> int:
        """The steps taken; reads pending flags from the device."""
        if self._skips is not None:
            self.steps = self._confirmed + self._pending - int(self._skips.item())
        return self._confirmed

    @steps.setter
    def steps(self, value: int) -> None:
        self._confirmed, self._pending, self._skips = value, 0, None

    def tick(self, skipped: Tensor | None) -> None:
        """Count a step.

        Args:
            skipped: The flag of an optimizer that may have skipped the step; None: it was taken.
        """
        if skipped is None:
            self._confirmed += 1
            return
        flag = skipped.ne(0).to(torch.int64)
        self._pending += 1
        self._skips = flag if self._skips is None else self._skips + flag.to(self._skips.device)

    def due(self, updates: Sequence[int], within: int = 1) -> bool:
        """Whether an update falls on one of the next `within` steps.

        Args:
            updates: The steps of the updates, sorted.
            within: How many of the next steps to look at.
        """
        # Not even if no pending step was skipped: then the flags need not be read.
        index = bisect.bisect_right(updates, self._confirmed)
        if index == len(updates) or self._confirmed + self._pending + within < updates[index]:
            return False
        following = self.steps + 1
        index = bisect.bisect_left(updates, following)
        return index < len(updates) and updates[index] < following + within


@dataclass
class Step:
    """The step under way: from the first optimizer's pre-hook to the last one's post-hook.

    Attributes:
        updating: Groups whose masks are updated in it.
        skipped: The flag of a fused optimizer that decides by itself whether to step.
        stepped: Optimizers that have stepped.
        swapped: Layers whose parameter holds the latent instead of the weight, with their group.
        stashed: Gradients that are set aside while a mask update replaces the step of an optimizer.
    """

    updating: list[Group] = field(default_factory=list)
    skipped: Tensor | None = None
    stepped: list[Optimizer] = field(default_factory=list)
    swapped: dict[PrunableLayer, Group] = field(default_factory=dict)
    stashed: dict[Optimizer, list[tuple[nn.Parameter, Tensor]]] = field(default_factory=dict)

    @property
    def replaced(self) -> bool:
        """Whether a mask update replaces the optimizer step."""
        return any(group.method.replaces_optimizer_step() for group in self.updating)


def within_step(optimizer: Optimizer) -> bool:
    """Whether the step hook that calls this runs for a `super().step()` inside a step of this optimizer.

    torch wraps `step` of each class that was instantiated, so a subclass that calls its parent's `step` runs the hooks
    twice. Looked up on the call stack, because a counter would stay wrong after a step that raised.

    Args:
        optimizer: The optimizer.
    """
    wrappers, frame = 0, sys._getframe(1)
    while frame is not None and wrappers < 2:
        is_wrapper = frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == Optimizer.__module__
        wrappers += is_wrapper and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return wrappers > 1


def skip_flag(optimizer: Optimizer) -> Tensor | None:
    """The flag that a GradScaler sets on a fused optimizer, which decides by itself whether to step: 1 is skipped.

    Args:
        optimizer: The optimizer.
    """
    flag = getattr(optimizer, "found_inf", None)
    return flag if isinstance(flag, Tensor) else None


def grad_scale(optimizer: Optimizer | None) -> Tensor | None:
    """The loss scale that gradients still carry if a fused optimizer unscales them by itself.

    Args:
        optimizer: The optimizer, if there is one.
    """
    scale = getattr(optimizer, "grad_scale", None)
    return scale if isinstance(scale, Tensor) else None
