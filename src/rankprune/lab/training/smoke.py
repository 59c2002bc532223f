"""Smoke runs: a recipe reduced to a few steps, on generated images if there are no data."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch

from rankprune.core.registry import method_info
from rankprune.core.settings import settings_of
from rankprune.lab.data import DataModule
from rankprune.lab.data.generate import write_coco, write_image_folder
from rankprune.lab.data.memory import Images, MemoryData
from rankprune.lab.data.sampling import Sampling
from rankprune.lab.recipes.load import check, to_dict
from rankprune.lab.recipes.names import SMOKE, base_method, merge
from rankprune.lab.recipes.schema import Recipe

from .task import open_data

_EPOCHS = 2
_SMALL = {"limit_train": 64, "limit_test": 64, "batch_size": 16}
# For networks on large images: just enough for four steps per epoch, or two.
_DATA: dict[str, dict[str, int]] = {
    "imagefolder": {"limit_train": 16, "limit_test": 8, "batch_size": 4},
    "coco": {"limit_train": 4, "limit_test": 2, "batch_size": 1, "steps_per_epoch": 2},
}
# Mask updates at every step, and few of the gradients that some methods collect.
_METHOD = {"every": 1, "prune_end": 0.5, "rounds": 2, "gradients": 4, "minibatch": 2, "batches": 1}


def smaller(recipe: Recipe, processes: int = 1) -> Recipe:
    """Reduce a recipe to two epochs of a few batches from random weights, with mask updates at every step.

    Args:
        recipe: The recipe.
        processes: Number of processes of the run.

    Returns:
        The reduced recipe; everything else is unchanged.
    """
    few = dict(_DATA.get(recipe.data.name, _SMALL))
    share = -(-few["batch_size"] // processes)
    few["batch_size"] = (share + share % 2 if recipe.mix else share) * processes  # mixup pairs the images of a share
    over: dict[str, Any] = {
        "name": f"{SMOKE}{recipe.name}",
        "epochs": _EPOCHS,
        "data": {**few, "workers": min(recipe.data.workers, 1)},
        "model": {"pretrained": False},
        "schedule": {"warmup_epochs": min(recipe.schedule.warmup_epochs, 0.5)},
    }
    if recipe.data.name == "coco":
        over["model"]["args"] = {"min_size": [96, 128], "max_size": 192}
    if recipe.method is not None:
        known = settings_of(method_info(base_method(recipe.method.name)).cls)
        over["method"] = {key: value for key, value in _METHOD.items() if key in known}
    return check(merge(to_dict(recipe), over))


def stand_in(recipe: Recipe) -> DataModule | None:
    """Generate data for a recipe that names no data folder.

    Args:
        recipe: The recipe.

    Returns:
        The generated data; None if the recipe's own data are available.
    """
    settings = recipe.data
    if settings.name == "fashion" or settings.root is not None:
        return None
    if settings.name == "cifar10":
        return _noise(recipe)
    folder = _Folder()
    write = write_coco if settings.name == "coco" else write_image_folder
    data = open_data(recipe, write(folder.path / settings.name))
    data.folder = folder  # type: ignore[attr-defined]
    return data


class _Folder:
    """A temporary folder that is deleted with its last reference."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="rankprune-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _noise(recipe: Recipe) -> DataModule:
    """Random images of CIFAR-10's shape, in memory."""
    settings, count = recipe.data, _SMALL["limit_train"]
    size, random = settings.image_size or 32, torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, size, size), generator=random).to(torch.uint8)
    labels = torch.arange(count) % 10
    sampling = Sampling(count, count, settings.batch_size, recipe.seed)
    return MemoryData("cifar10", Images(images, labels, images, labels), 10, sampling, "cifar10", settings.augment)
