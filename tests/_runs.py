"""A network and a recipe of a second, and a callback that can pull the plug."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankprune.lab.data import DataModule, load_data
from rankprune.lab.models.registry import _BUILDERS, register_model
from rankprune.lab.recipes import Recipe, load_recipe
from rankprune.lab.sweep.runner import Done, Source
from rankprune.lab.sweep.worker import work
from rankprune.lab.training import Callback, Outcome, train


class Tiny(nn.Module):
    """Two convolutions, a norm, dropout (so that the order of random numbers matters) and a classifier."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 8, 3, 2, 1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, 2, 1)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv2(torch.relu(self.norm(self.conv1(x)))))
        return self.head(self.drop(x.mean((2, 3))))


class Double(nn.Module):
    """In double precision and with GroupNorm: two half batches give what the whole one gives, but for rounding."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, 7, 3, 2, 1), nn.GroupNorm(1, 7), nn.ReLU(), nn.Conv2d(7, 18, 3, 2, 1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(18, num_classes)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.double()).mean((2, 3)))


if "test-tiny" not in _BUILDERS:
    register_model("test-tiny")(lambda num_classes, in_channels: Tiny(num_classes, in_channels))
    register_model("test-double")(lambda num_classes, in_channels: Double(num_classes, in_channels))

# 10 batches of 16 an epoch, masks updated at every second step.
SMALL = (
    "model.name=test-tiny", "epochs=3", "data.limit_train=160", "data.limit_test=100", "data.batch_size=16",
)  # fmt: skip


def small(name: str = "fashion-rpg-90", *overrides: str) -> Recipe:
    every = ["method.every=2"] if any(f"-{m}-" in name for m in ("rpg", "gmp", "rigl", "set")) else []
    return load_recipe(name, [*SMALL, *every, *overrides])


@lru_cache
def data_of(batch_size: int, train_images: int | None, test_images: int | None) -> DataModule:
    """Unpacked once for all tests; a data set holds no state."""
    return load_data("fashion", image_size=14, batch_size=batch_size, limit_train=train_images, limit_test=test_images)


def run(recipe: Recipe, out: Path, resume: bool = False, callback: Callback | None = None) -> Outcome:
    data = data_of(recipe.data.batch_size, recipe.data.limit_train, recipe.data.limit_test)
    return train(recipe, out, resume=resume, callback=callback, data=data)


def model_bytes(folder: Path) -> tuple[Any, bytes]:
    """The saved model: its header as a value (the library writes metadata in no fixed order), its tensors as bytes."""
    raw = (folder / "model.sparse.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


class Plug(Callback):
    """Remembers what it is told, and does something at one step."""

    def __init__(self, at: int | None = None, action: Callable[[], Any] | None = None) -> None:
        self.at, self.action = at, action or (lambda: os.kill(os.getpid(), signal.SIGTERM))
        self.messages: list[str] = []
        self.lines: list[dict[str, Any]] = []
        self.steps: list[int] = []

    def step(self, step: int, status: object = None) -> None:
        self.steps.append(step)
        if step == self.at:
            self.action()

    def epoch(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def message(self, text: str) -> None:
        self.messages.append(text)



def a_result(recipe: str, accuracy: float, sparsity: float, kept: int, prunable: int, **other: Any) -> dict[str, Any]:
    """The content of a result.json, made up."""
    values = {
        "recipe": recipe, "fingerprint": "f", "setting": "s", "task": "net on data", "method": "gmp", "seed": 0, "epochs": 1,
        "steps": 6, "target_sparsity": sparsity, "sparsity": sparsity, "kept": kept, "prunable": prunable, "metric": "top1",
        "accuracy_last": accuracy, "accuracy_best": accuracy, "best_epoch": 1, "delta": 0.1, "delta_rank_ratio": 0.5,
        "exact_rank_ratio": 0.75, "dead_filters": 3, "filters": 10, "macs_dense": 100, "macs_sparse": 20, "bytes_dense": 1000,
        "bytes_sparse": 100, "training_flops": 1e6, "training_share": 0.25, "seconds": 1.0,
    }  # fmt: skip
    return {**values, **other}


class HereRunner:
    """Runs orders one after another in this process: the same work as in a process of its own, without its start."""

    def run(self, source: Source, done: Done, seconds: float | None = None) -> bool:
        while (order := source(True)) is not None:
            done(order, work(order.to_dict()))
        return True
