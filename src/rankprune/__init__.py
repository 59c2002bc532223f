"""rankprune: take a PyTorch network to 90-99.9 % unstructured sparsity with the least accuracy lost."""

from __future__ import annotations

import importlib
from typing import Any

from ._openmp import wait_asleep

__version__ = "0.1.0"

wait_asleep()

# Loaded on first use (PEP 562), so that importing one torch-free room does not import torch.
_ROOMS = (
    "budget", "data", "engine", "extras", "flops", "losses", "method", "methods", "models", "rank", "schedules", "topk",
)  # fmt: skip
_NAMES = {
    "attach": "sparsifier",
    "Sparsifier": "sparsifier",
    "NotAtTarget": "sparsifier",
    "prune": "oneshot",
    "sensitivity": "oneshot",
    "recalibrate": "oneshot",
    "list_methods": "method",
    "method_info": "method",
    "register": "method",
    "Site": "method",
    "Score": "method",
    "DropGrow": "method",
    "Masked": "method",
    "Latent": "method",
    "save": "formats",
    "load": "formats",
    "compile": "engine.compiled",
}
__all__ = [*_ROOMS, *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"rankprune.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"rankprune.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'rankprune' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
