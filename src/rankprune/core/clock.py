"""Counts optimizer steps without looking at a device until it must."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import torch
from torch import Tensor


class Clock:
    """Steps taken.

    A fused optimizer under a GradScaler leaves a flag on the device that says whether it skipped; such flags are
    summed there, and the sum read only when a mask update may be due.
    """

    def __init__(self) -> None:
        self._sure = 0
        self._unsure = 0  # steps that left a flag, and how many of them were skipped
        self._skips: Tensor | None = None

    @property
    def steps(self) -> int:
        if self._skips is not None:
            self.steps = self._sure + self._unsure - int(self._skips.item())
        return self._sure

    @steps.setter
    def steps(self, value: int) -> None:
        self._sure, self._unsure, self._skips = value, 0, None

    def tick(self, skipped: Tensor | None) -> None:
        if skipped is None:
            self._sure += 1
            return
        flag = skipped.ne(0).to(torch.int64)
        self._unsure += 1
        self._skips = flag if self._skips is None else self._skips + flag.to(self._skips.device)

    def due(self, updates: Sequence[int], within: int = 1) -> bool:
        """Whether one of the next `within` steps is among `updates` (sorted)."""
        index = bisect.bisect_right(updates, self._sure)
        if index == len(updates) or self._sure + self._unsure + within < updates[index]:
            return False
        following = self.steps + 1
        index = bisect.bisect_left(updates, following)
        return index < len(updates) and updates[index] < following + within
