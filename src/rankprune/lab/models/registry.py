"""One registry of model names: our own, and ``torchvision:NAME`` / ``timm:NAME`` through the adapters."""

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
    """Register ``builder(num_classes, in_channels, **kwargs)`` under ``name``."""

    def add(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise ValueError(f"The model name {name!r} is registered twice.")
        _BUILDERS[name] = builder
        return builder

    return add


def is_registered(name: str) -> bool:
    """Whether `name` is one of our own models or was registered in this process."""
    return name in _BUILDERS


def list_models(pattern: str = "*") -> list[str]:
    """Names that match the glob; those of a library only where the pattern begins with it (``"timm:vit_*"``)."""
    library, colon, _ = pattern.partition(":")
    names: Iterable[str] = (name for name in _BUILDERS if ":" not in name)  # without a user's own module:factory
    if colon and library in adapters.LIBRARIES:
        names = (f"{library}:{name}" for name in adapters.LIBRARIES[library].names())
    return sorted(fnmatch.filter(names, pattern))


def is_model_name(text: str) -> bool:
    """Whether a word on the command line names a model, known or misspelt, and not a file."""
    library, colon, _ = text.partition(":")
    code = text.rpartition(":")[0].endswith(".py") or (colon and "/" not in text)
    return (
        text in _BUILDERS or bool(code or (colon and library in adapters.LIBRARIES)) or not ("/" in text or "." in text)
    )


def create_model(
    name: str, num_classes: int = 10, in_channels: int = 3, pretrained: bool | str = False, **kwargs: Any
) -> nn.Module:
    """Build a model by name; ``kwargs`` go to its constructor (``img_size=96`` for a timm ViT, say).

    ``pretrained`` fetches the default weights of a ``torchvision:`` or ``timm:`` model, or those of that name
    (``"IMAGENET1K_V1"``); a classifier of another number of classes stays at its initialisation.
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
    """The full name of the first installed library that knows a bare ``name``."""
    for library, models in adapters.LIBRARIES.items():
        with contextlib.suppress(ImportError):
            if models.has(name):
                return f"{library}:{name}"
    return None


def _nearest(name: str, known: Iterable[str]) -> str:
    """Most alike by difflib's ratio; between equals the one that agrees at more positions."""

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
    return ModelError(f"There is no model named {name!r}: the nearest is {nearest!r}, and list_models() gives all.")
