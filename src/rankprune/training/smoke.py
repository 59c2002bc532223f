"""A recipe in miniature."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from rankprune.data import DataModule
from rankprune.data.memory import Images, MemoryData
from rankprune.data.sampling import Sampling
from rankprune.method import method_info
from rankprune.recipes.load import check, to_dict
from rankprune.recipes.names import base_method, merge
from rankprune.recipes.schema import Recipe

_IMAGES, _BATCH, _EPOCHS = 64, 16, 2


def smaller(recipe: Recipe) -> Recipe:
    """Two epochs of four batches, masks updated at every step; all else as it was."""
    over: dict[str, Any] = {
        "name": f"smoke-{recipe.name}",
        "epochs": _EPOCHS,
        "data": {"limit_train": _IMAGES, "limit_test": _IMAGES, "batch_size": _BATCH},
        "schedule": {"warmup_epochs": min(recipe.schedule.warmup_epochs, 0.5)},
    }
    if recipe.method is not None:
        known = {field.name for field in fields(method_info(base_method(recipe.method.name)).cls)}
        over["method"] = {key: value for key, value in {"every": 1, "prune_end": 0.5}.items() if key in known}
    return check(merge(to_dict(recipe), over))


def stand_in(recipe: Recipe) -> DataModule | None:
    """Random images of the shape of CIFAR-10 where its files are not given; None where the data are there."""
    settings = recipe.data
    if settings.name != "cifar10" or settings.root is not None:
        return None
    size, random = settings.image_size or 32, torch.Generator().manual_seed(0)
    images = torch.randint(256, (_IMAGES, 3, size, size), generator=random).to(torch.uint8)
    labels = torch.arange(_IMAGES) % 10
    sampling = Sampling(_IMAGES, _IMAGES, settings.batch_size, recipe.seed)
    return MemoryData("cifar10", Images(images, labels, images, labels), 10, sampling, "cifar10", settings.augment)
