"""How much memory and work a program may ask for: a small file from elsewhere must not take the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .graph import Unsupported

MEMORY, MEMORY_PER_BYTE = 1 << 30, 64  # bytes any file may ask for, and bytes for each byte of the file
WORK, WORK_PER_BYTE = 2 * 10**10, 10**5  # multiply-adds of one image, and for each byte of the file


class TooLarge(Unsupported):
    """A program that asks for more than its limits."""


@dataclass(frozen=True)
class Limits:
    """Bytes of tables and activations of one thread, and multiply-adds of one image. By default none."""

    memory: float = math.inf
    work: float = math.inf

    @classmethod
    def of_file(cls, size: int, max_memory: float | None = None, max_work: float | None = None) -> Limits:
        """From the size of the file, where the caller does not say."""
        memory = max(MEMORY, MEMORY_PER_BYTE * size) if max_memory is None else max_memory
        return cls(memory, max(WORK, WORK_PER_BYTE * size) if max_work is None else max_work)


class Meter:
    """Counts what a program asks for, before it is allocated."""

    def __init__(self, limits: Limits, images: int) -> None:
        self.limits, self.images = limits, images
        self.kept = 0  # bytes of tables that the program holds
        self.work = 0

    def need(self, size: int) -> None:
        """Raises TooLarge if so many bytes, beside what is kept, are more than the limit."""
        asked = self.kept + size
        if asked > self.limits.memory:
            raise TooLarge(
                f"asks for {asked / 1e9:.2f} GB of memory or more, and {self.limits.memory / 1e9:.2f} GB are allowed: "
                f"pass max_memory={asked} (bytes) or more if you trust it"
            )

    def keep(self, size: int) -> None:
        self.need(size)
        self.kept += size

    def spend(self, work: int) -> None:
        """Multiply-adds, or numbers moved, of one run."""
        self.work += work
        if self.work > self.limits.work * self.images:
            raise TooLarge(
                f"asks for {self.work / self.images:.2e} multiply-adds per image or more, and {self.limits.work:.2e} "
                f"are allowed: pass max_work={self.work / self.images:.2e} or more if you trust it"
            )
