"""Counts optimizer steps without looking at a device until it must."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from torch import Tensor


class Clock:
    """Steps taken.

    A fused optimizer under a GradScaler leaves a flag on the device that says whether it skipped; such flags are
    gathered and read only when a mask update may be due.
    """

    def __init__(self) -> None:
        self._sure = 0
        self._flags: list[Tensor] = []

    @property
    def steps(self) -> int:
        for flag in self._flags:
            self._sure += 0 if flag.item() else 1
        self._flags.clear()
        return self._sure

    @steps.setter
    def steps(self, value: int) -> None:
        self._sure = value
        self._flags.clear()

    def tick(self, skipped: Tensor | None) -> None:
        if skipped is None:
            self._sure += 1
        else:
            self._flags.append(skipped.clone())

    def due(self, updates: Sequence[int]) -> bool:
        """Whether the next step is one of `updates` (sorted)."""
        index = bisect.bisect_right(updates, self._sure)
        if index == len(updates) or self._sure + len(self._flags) + 1 < updates[index]:
            return False
        following = self.steps + 1
        index = bisect.bisect_left(updates, following)
        return index < len(updates) and updates[index] == following
