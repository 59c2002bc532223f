"""The input size of a network, according to its own configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from rankprune._util import need

_LIBRARY, _OWN = 224, 32  # defaults


def input_channels(model: nn.Module) -> int | None:
    """Return the input channels of the first convolution.

    Args:
        model: The model.

    Returns:
        The channels; None if there is no convolution.
    """
    return next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), None)


def input_features(model: nn.Module) -> int | None:
    """Return the input features of a network of linear layers.

    Args:
        model: The model.

    Returns:
        The features; None if a convolution or an embedding comes first.
    """
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.Linear)
    first = next((m for m in model.modules() if isinstance(m, kinds)), None)
    return first.in_features if isinstance(first, nn.Linear) else None


def input_size(name: str, args: Mapping[str, Any], model: nn.Module) -> int:
    """Return the height and width of a model's images.

    Args:
        name: Name of the model.
        args: Arguments of its constructor.
        model: The model.

    Returns:
        Pixels.
    """
    resized = getattr(getattr(model, "transform", None), "min_size", None)  # by a detector
    for given in (args.get("img_size"), args.get("image_size"), getattr(model, "image_size", None), resized):
        if size := _side(given):
            return size
    if name.startswith("timm:"):
        config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
        return _side(config.get("input_size")) or _LIBRARY
    if name.startswith("torchvision:"):
        return next(_of_weights(name), _LIBRARY)
    return _OWN


def other_sizes(name: str) -> list[int]:
    """Return the sizes at which the library's weights for a model were trained, besides the model's own.

    Args:
        name: Name of the model.

    Returns:
        Pixels.
    """
    return list(_of_weights(name)) if name.startswith("torchvision:") else []


def _of_weights(name: str) -> Iterator[int]:
    """Sizes at which torchvision's weights are evaluated, oldest first; 299 for inception_v3."""
    models = need("torchvision.models", "vision", "A torchvision: model")
    for weights in models.get_model_weights(name.partition(":")[2]):
        keywords = getattr(weights.transforms, "keywords", {})
        if size := _side(keywords.get("crop_size") or keywords.get("resize_size")):
            yield size


def _side(size: Any) -> int | None:
    """The last of (channels, height, width), or the number itself."""
    last = size[-1] if isinstance(size, (list, tuple)) and size else size
    return last if isinstance(last, int) and not isinstance(last, bool) and last > 0 else None
