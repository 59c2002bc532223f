"""What training by a method costs, as a share of dense training: each method names one of these as its `cost`.

A dense step is three passes of equal cost: forward, gradient of the activations, gradient of the weights. A sparse pass
costs the share f of a dense one. f may change over training: `costs` are its values over equal parts of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What the cost of training depends on besides f.

    Attributes:
        every: Steps between two mask updates.
        update_end: The share of training with mask updates.
        backward: The cost of the weight gradient on Top-KAST's wider backward set, as a share of a dense pass.
    """

    every: int = 100
    update_end: float = 1.0
    backward: float = 1.0


@dataclass(frozen=True)
class TrainingCost:
    """All three passes are sparse: each step costs f.

    Attributes:
        step: The cost of an ordinary step as a formula, for tables.
    """

    step: str = "f"

    def share(self, costs: Sequence[float], timing: Timing) -> float:
        """The cost of training as a share of dense training.

        Args:
            costs: The cost f of a sparse pass, over equal parts of training.
            timing: What else it depends on.
        """
        return math.fsum(costs) / len(costs)


@dataclass(frozen=True)
class DenseGradient(TrainingCost):
    """Every weight (or latent) has its gradient at every step."""

    step: str = "(2f + 1)/3"

    def share(self, costs: Sequence[float], timing: Timing) -> float:
        return (2 * super().share(costs, timing) + 1) / 3


@dataclass(frozen=True)
class BackwardSetGradient(TrainingCost):
    """The weights of Top-KAST's backward set have their gradient at every step."""

    step: str = "(2f + b)/3"

    def share(self, costs: Sequence[float], timing: Timing) -> float:
        return (2 * super().share(costs, timing) + timing.backward) / 3


@dataclass(frozen=True)
class DenseGradientAtUpdates(TrainingCost):
    """One dense weight gradient in `every` + 1 steps (Evci et al. 2020, appendix H)."""

    def share(self, costs: Sequence[float], timing: Timing) -> float:
        mean, every = super().share(costs, timing), timing.every
        return (3 * mean * every + 2 * mean + 1) / (3 * (every + 1))


@dataclass(frozen=True)
class DenseGradientWhilePruning(TrainingCost):
    """A density that falls, and a dense weight gradient in `every` steps until `update_end`."""

    def share(self, costs: Sequence[float], timing: Timing) -> float:
        updating = costs[: max(1, round(timing.update_end * len(costs)))]
        dense_gradients = math.fsum(1 - f for f in updating) / (3 * timing.every * len(updating))
        return super().share(costs, timing) + dense_gradients * timing.update_end
