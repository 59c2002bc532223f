"""The registry of model names: our own, and ``torchvision:NAME`` / ``timm:NAME`` through the adapters."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from . import adapters
from .errors import ModelError

Builder = Callable[..., nn.Module]

_BUILDERS: dict[str, Builder] = {}


def register_model(name: str) -> Callable[[Builder], Builder]:
    """Register ``builder(num_classes, in_channels, **kwargs)`` under a name, as a decorator.

    Args:
        name: Name of the model.

    Returns:
        The decorator.

    Raises:
        ValueError: The name is already registered.
    """

    def add(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise ValueError(f"The model name {name!r} is registered twice.")
        _BUILDERS[name] = builder
        return builder

    return add


def is_registered(name: str) -> bool:
    """Whether a name is one of our own models or was registered in this process.

    Args:
        name: Name of a model.

    Returns:
        True if it is.
    """
    return name in _BUILDERS


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of models that match a pattern.

    Args:
        pattern: A glob; those of a library match only if it starts with the library (``"timm:vit_*"``).

    Returns:
        The names, sorted.
    """
    library, colon, _ = pattern.partition(":")
    names: Iterable[str] = (name for name in _BUILDERS if ":" not in name)  # without the user's module:factory
    if colon and library in adapters.LIBRARIES:
        names = (f"{library}:{name}" for name in adapters.LIBRARIES[library].names())
    return sorted(fnmatch.filter(names, pattern))


def is_model_name(text: str) -> bool:
    """Whether an argument of a command names a model, known or misspelled, rather than a file.

    Args:
        text: The argument.

    Returns:
        True for a name.
    """
    library, colon, _ = text.partition(":")
    code = text.rpartition(":")[0].endswith(".py") or (colon and "/" not in text)
    return (
        text in _BUILDERS or bool(code or (colon and library in adapters.LIBRARIES)) or not ("/" in text or "." in text)
    )


def create_model(
    name: str, num_classes: int = 10, in_channels: int = 3, pretrained: bool | str = False, **kwargs: Any
) -> nn.Module:
    """Create a model by name.

    Args:
        name: A name of `list_models`, ``torchvision:NAME`` or ``timm:NAME``.
        num_classes: Number of classes.
        in_channels: Input channels.
        pretrained: Download the default weights of a ``torchvision:`` or ``timm:`` model, or those of this name
            (``"IMAGENET1K_V1"``). A classifier with another number of classes keeps its initialization.
        **kwargs: Further arguments of its constructor, such as ``img_size=96`` for a timm ViT.

    Returns:
        The model.

    Raises:
        ModelError: There is no such model, or it has no weights to download.
    """
    if num_classes < 1 or in_channels < 1:
        raise ModelError(f"num_classes={num_classes} and in_channels={in_channels} must both be at least 1.")
    library, colon, inner = name.partition(":")
    if colon and library in adapters.LIBRARIES:
        known = adapters.LIBRARIES[library]
        if not known.has(inner):
            raise _unknown(name, f"{library}:{_nearest(inner, known.names())}")
        return known.create(inner, num_classes, in_channels, pretrained, **kwargs)
    if name not in _BUILDERS:
        raise _unknown(name, _in_libraries(name) or _nearest(name, _BUILDERS))
    if "pretrained" in inspect.signature(_BUILDERS[name]).parameters:
        kwargs = {"pretrained": pretrained, **kwargs}
    elif pretrained:
        raise ModelError(f"{name} has no weights to download: load a file of your own with load_weights(model, path).")
    return _BUILDERS[name](num_classes=num_classes, in_channels=in_channels, **kwargs)


def _in_libraries(name: str) -> str | None:
    """The full name of a model without its library, by the first installed library that has it."""
    for library, models in adapters.LIBRARIES.items():
        with contextlib.suppress(ImportError):
            if models.has(name):
                return f"{library}:{name}"
    return None


def _nearest(name: str, known: Iterable[str]) -> str:
    """The most similar name by difflib's ratio; of equals, the one that agrees at more positions."""

    def likeness(other: str) -> tuple[float, int]:
        ratio = difflib.SequenceMatcher(None, other, name).ratio()
        return ratio, sum(a == b for a, b in zip(other, name))

    return max(known, key=likeness)


def _unknown(name: str, nearest: str) -> ModelError:
    source, _, factory = name.rpartition(":")
    if source and factory.isidentifier() and source not in adapters.LIBRARIES:
        return ModelError(
            f"The model {name!r} is code, which runs only if you name it yourself: add --model {name} to the command."
        )
    return ModelError(f"There is no model {name!r}: the nearest is {nearest!r}, and `rankprune models` lists all.")
