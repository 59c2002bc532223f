"""The trainer that runs recipes: `train(load_recipe("fashion-rpg-98"), out="runs")` fills a run folder."""

from __future__ import annotations

from rankprune.lab.errors import (
    Interrupted,
    LostRank,
    MasksDiffer,
    NanLoss,
    OffTarget,
    RunError,
    StepFailed,
    Unfinished,
)

from .run import Outcome, smoke, train
from .watch import Watcher

__all__ = [
    "Interrupted",
    "LostRank",
    "MasksDiffer",
    "NanLoss",
    "OffTarget",
    "Outcome",
    "RunError",
    "StepFailed",
    "Unfinished",
    "Watcher",
    "smoke",
    "train",
]
