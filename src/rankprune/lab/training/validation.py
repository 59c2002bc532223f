"""Checks that model, data and settings fit together, before anything is trained or written."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rankprune.lab.data import DataModule
from rankprune.lab.data.coco import CocoData
from rankprune.lab.models import ModelError
from rankprune.lab.recipes.schema import Recipe


def validate(recipe: Recipe, model: nn.Module, data: DataModule) -> None:
    """Raise if the model does not fit the data or the recipe's settings.

    Args:
        recipe: The recipe.
        model: The model.
        data: The data.

    Raises:
        ModelError: They do not fit.
    """
    if isinstance(data, CocoData):
        _check_detector(recipe, model)
    else:
        _check_classifier(recipe.model.name, model, data)


def _check_detector(recipe: Recipe, model: nn.Module) -> None:
    for key in ("mix", "distill", "label_smoothing"):
        if getattr(recipe, key):
            raise ModelError(f"{key} is for images with one label each, and coco has boxes and masks: leave it out.")
    if getattr(getattr(model, "roi_heads", None), "mask_predictor", None) is None:
        raise ModelError(f"{recipe.model.name} predicts no masks, which coco needs: use maskrcnn-resnet50-fpn.")


@torch.no_grad()
def _check_classifier(name: str, model: nn.Module, data: DataModule) -> None:
    """Pass one image through the model, in evaluation mode, so that no statistics change."""
    channels, size, training = data.in_channels, data.image_size, model.training
    try:
        scores = model.eval()(torch.zeros(1, channels, size, size))
    except Exception as error:  # models raise all kinds of errors
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ModelError(
            f"{name} does not accept images of {channels} x {size} x {size} ({reason}): "
            "change data.image_size, or model.args if the model has its own size."
        ) from error
    finally:
        model.train(training)
    if not isinstance(scores, Tensor) or scores.shape != (1, data.num_classes):
        raise ModelError(f"{name} does not return one score for each of {data.num_classes} classes: use a classifier.")
