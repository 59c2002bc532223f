"""Opens a model from a run folder or a file of weights, ours or another library's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankprune.formats.sparse import read_about
from rankprune.lab.data.coco import NOMINAL_SIZE
from rankprune.lab.models import About, ModelError, find_about
from rankprune.lab.models.weights import fill_weights, read_state_dict
from rankprune.lab.recipes.yaml_file import read

from .run_folder import MODEL, RECIPE

_SIZES = {"fashion": 28, "cifar10": 32, "imagefolder": 224, "coco": NOMINAL_SIZE}


class Opened(NamedTuple):
    """A model with the weights of a file, an example input, and the description needed to build it again."""

    model: nn.Module
    example: Tensor
    about: About


def open_model(path: Path, name: str | None = None, image_size: int | None = None) -> Opened:
    """Open a model with the weights of a run folder or a file.

    Our own files and runs name their model. For other files `name` does; the number of classes and channels is inferred
    from the shapes of the weights. Nothing is downloaded, and no code of the folder or file is executed.

    Args:
        path: A run folder or a file of weights.
        name: Name of the model, if the file does not say.
        image_size: Height and width of the example input, if not that of the training.

    Returns:
        The model in evaluation mode, an example input and its description.

    Raises:
        ModelError: The file does not exist, its model is unknown, or the weights do not fit the model.
        ValueError: `image_size` is below 1.
    """
    must_exist(path)
    at_least_one(image_size=image_size)
    if path.is_dir():
        if not (path / MODEL).is_file():
            what = "an unfinished run" if (path / RECIPE).is_file() else "no run itself"
            raise ModelError(f"{path} holds {what}: give the folder of a finished one, which has a {MODEL}.")
        path = path / MODEL
    state = read_state_dict(path)
    about = _about(path, name, state, image_size)
    if image_size is not None:
        about = replace(about, image_size=image_size)
    if misfit := about.misfit(state):  # before the model takes any memory
        raise ModelError(f"{path.name} does not fit {about.name}: {misfit}.")
    example = torch.zeros(about.example_shape())
    return Opened(fill_weights(about.build(), state, path).eval(), example, about)


def _about(path: Path, name: str | None, state: Mapping[str, Tensor], image_size: int | None) -> About:
    if (stored := read_about(path)) is not None:
        about = About.from_dict(stored, path.name)
        if name in (None, about.name):
            return about
    recipe = read(path.parent / RECIPE) if name is None and (path.parent / RECIPE).is_file() else {}
    model, data = _table(recipe, "model"), _table(recipe, "data")
    name = name or model.get("name")
    if not isinstance(name, str):
        raise ModelError(
            f"{path} does not say which model it belongs to: add --model torchvision:resnet18, for example."
        )
    about = find_about(name, model.get("args") or {}, state, image_size)
    size = data.get("image_size") or _SIZES.get(str(data.get("name")))
    return About.from_dict({**about.to_dict(), "image_size": size or about.image_size}, path)


def _table(recipe: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = recipe.get(key)
    return value if isinstance(value, Mapping) else {}


def must_exist(path: Path) -> None:
    """Raise if a path does not exist.

    Args:
        path: A run folder or a file of weights.

    Raises:
        ModelError: It does not exist.
    """
    if not path.exists():
        raise ModelError(f"There is no run folder or weights file {path}: check the path.")


def at_least_one(**counts: int | None) -> None:
    """Raise if a number is below 1.

    Args:
        **counts: Numbers by name; None is allowed.

    Raises:
        ValueError: One of them is below 1.
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}={count} is too few: give 1 or more.")
