"""The trainer that runs recipes: `train(load_recipe("fashion-rpg-98"), out="runs")` fills a run folder."""

from __future__ import annotations

from .errors import Interrupted, NanLoss, OffTarget, RunError, Unfinished
from .run import Outcome, smoke, train
from .watch import Watcher

__all__ = ["Interrupted", "NanLoss", "OffTarget", "Outcome", "RunError", "Unfinished", "Watcher", "smoke", "train"]
