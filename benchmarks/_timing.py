"""Interleaved timing: each candidate runs once a round, so a slow spell of the machine falls on all alike."""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate over all rounds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def paired(self, base: Timing) -> float:
        """The median over the rounds of this one's time to that of `base` in the same round."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.seconds, base.seconds, strict=True))

    def __str__(self) -> str:
        low, mid = self.minimum * 1e3, self.median * 1e3
        return f"{self.name:<32} min {low:10.2f} ms   median {mid:10.2f} ms   ({len(self.seconds)} rounds)"


def interleave(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 5, warmup: int = 1
) -> dict[str, Timing]:
    """Times each candidate `rounds` times, in turn and every other round backwards; `warmup` rounds are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(warmup + rounds):
        for name, run in list(candidates.items())[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            run()
            spent = time.perf_counter() - start
            if turn >= warmup:
                seconds[name].append(spent)
    return {n: Timing(n, tuple(s)) for n, s in seconds.items()}
