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

from .callbacks import Callback, Status
from .run import Outcome, smoke, train

__all__ = [
    "Callback",
    "Interrupted",
    "LostRank",
    "MasksDiffer",
    "NanLoss",
    "OffTarget",
    "Outcome",
    "RunError",
    "Status",
    "StepFailed",
    "Unfinished",
    "smoke",
    "train",
]
