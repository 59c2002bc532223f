"""Limits of memory and work, so that a small file from an untrusted source cannot exhaust the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .graph import Unsupported

MEMORY, MEMORY_PER_BYTE = 1 << 30, 64  # bytes that any file may use, and bytes per byte of the file
WORK, WORK_PER_BYTE = 2 * 10**10, 10**5  # multiply-adds per image, and per image and byte of the file


class TooLarge(Unsupported):
    """A program that exceeds its limits."""


@dataclass(frozen=True)
class Limits:
    """Limits of a program; by default there are none.

    Attributes:
        memory: Bytes of tables and activations of one thread.
        work: Multiply-adds per image.
    """

    memory: float = math.inf
    work: float = math.inf

    @classmethod
    def of_file(cls, size: int, max_memory: float | None = None, max_work: float | None = None) -> Limits:
        """Return the limits of a file.

        Args:
            size: Bytes of the file.
            max_memory: The limit of memory; by default it follows from the size.
            max_work: The limit of work; by default it follows from the size.

        Returns:
            The limits.
        """
        memory = max(MEMORY, MEMORY_PER_BYTE * size) if max_memory is None else max_memory
        return cls(memory, max(WORK, WORK_PER_BYTE * size) if max_work is None else max_work)


class Meter:
    """Counts memory and work before they are used.

    Args:
        limits: The limits.
        images: Images per run.
    """

    def __init__(self, limits: Limits, images: int) -> None:
        self.limits, self.images = limits, images
        self.kept = 0  # bytes of tables that the program keeps
        self.work = 0

    def need(self, size: int) -> None:
        """Check memory that is about to be allocated, in addition to what is kept.

        Args:
            size: Bytes.

        Raises:
            TooLarge: It exceeds the limit.
        """
        asked = self.kept + size
        if asked > self.limits.memory:
            raise TooLarge(
                f"asks for {asked / 1e9:.2f} GB of memory or more, and {self.limits.memory / 1e9:.2f} GB are allowed: "
                f"pass max_memory={asked} (bytes) or more if you trust it"
            )

    def keep(self, size: int) -> None:
        """Count memory that the program keeps.

        Args:
            size: Bytes.

        Raises:
            TooLarge: It exceeds the limit.
        """
        self.need(size)
        self.kept += size

    def spend(self, work: int) -> None:
        """Count the work of one run.

        Args:
            work: Multiply-adds, or numbers moved.

        Raises:
            TooLarge: It exceeds the limit.
        """
        self.work += work
        if self.work > self.limits.work * self.images:
            raise TooLarge(
                f"asks for {self.work / self.images:.2e} multiply-adds per image or more, and {self.limits.work:.2e} "
                f"are allowed: pass max_work={self.work / self.images:.2e} or more if you trust it"
            )
