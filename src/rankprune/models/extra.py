"""Import of an optional library, with one sentence naming the extra that brings it."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str, purpose: str) -> Any:
    """Return the imported ``module``; raise ImportError naming ``rankprune[extra]`` when it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module missing inside the library is the library's own trouble and is shown as it is.
        if error.name != module.partition(".")[0]:
            raise
        raise ImportError(
            f"{purpose} needs {error.name}, which is not installed: pip install 'rankprune[{extra}]'."
        ) from None
