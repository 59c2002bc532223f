"""Weights of any of our files, or of others', into a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankprune.data.coco import NOMINAL_SIZE
from rankprune.models import ModelError, create_model, load_weights
from rankprune.models.weights import read_state_dict
from rankprune.recipes.yaml_file import read

from .folder import MODEL, RECIPE


def open_model(path: Path, name: str | None = None, image_size: int | None = None) -> tuple[nn.Module, Tensor]:
    """A model with the weights of a run folder or a file, and an example input.

    A run knows its model. For other files `name` says it; classes and channels are read off the weights.
    """
    must_exist(path)
    at_least_one(image_size=image_size)
    if path.is_dir():
        if not (path / MODEL).is_file():
            what = "an unfinished run" if (path / RECIPE).is_file() else "no run itself"
            raise ModelError(f"{path} holds {what}: give the folder of a finished one, which has a {MODEL}.")
        path = path / MODEL
    recipe: dict[str, Any] = read(path.parent / RECIPE) if (path.parent / RECIPE).is_file() and name is None else {}
    name = name or recipe.get("model", {}).get("name")
    if name is None:
        raise ModelError(f"Which model are the weights {path} of? Say it: --model torchvision:resnet18, for example.")
    state = read_state_dict(path)
    kernels = [w for w in state.values() if w.ndim == 4]
    matrices = [w for w in state.values() if w.ndim == 2]
    data = recipe.get("data", {}).get("name", "")
    # A ViT may begin with a matrix, which does not tell its channels from its pixels.
    channels = 1 if data == "fashion" else kernels[0].shape[1] if kernels else 3
    if (scores := state.get("roi_heads.box_predictor.cls_score.weight")) is not None:  # a detector has more matrices
        matrices = [scores]
    classes = matrices[-1].shape[0] if matrices else kernels[-1].shape[0] if kernels else 10
    model = create_model(name, classes, channels, **recipe.get("model", {}).get("args", {}))
    sizes = {"fashion": 28, "cifar10": 32, "imagefolder": 224, "coco": NOMINAL_SIZE}
    known = sizes.get(data, 224 if ":" in name else 32)
    size = image_size or recipe.get("data", {}).get("image_size") or known
    return load_weights(model, path).eval(), torch.zeros(1, channels, size, size)


def must_exist(path: Path) -> None:
    if not path.exists():
        raise ModelError(f"There is no run folder or weights file {path}: check the path.")


def at_least_one(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}={count} is too few: give 1 or more.")
