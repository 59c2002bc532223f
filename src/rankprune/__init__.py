"""rankprune: take a PyTorch network to 90-99.9 % unstructured sparsity with the least accuracy lost.

Attributes are loaded on first use (PEP 562): ``import rankprune`` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .openmp import limit_spinning

__version__ = "0.1.0"

limit_spinning()

if TYPE_CHECKING:
    from . import engine as engine
    from . import extras as extras
    from . import flops as flops
    from . import methods as methods
    from . import rank as rank
    from .core import plan as plan
    from .core import schedules as schedules
    from .core.method import DropGrow as DropGrow
    from .core.method import Extra as Extra
    from .core.method import Latent as Latent
    from .core.method import Masked as Masked
    from .core.method import PrunableLayer as PrunableLayer
    from .core.method import Score as Score
    from .core.method import list_methods as list_methods
    from .core.method import method_info as method_info
    from .core.method import register as register
    from .core.oneshot import prune as prune
    from .core.oneshot import recalibrate as recalibrate
    from .core.oneshot import sensitivity as sensitivity
    from .core.sparsifier import NotAtTarget as NotAtTarget
    from .core.sparsifier import Sparsifier as Sparsifier
    from .core.sparsifier import attach as attach
    from .engine.compile import compile as compile
    from .formats import load as load
    from .formats import save as save
    from .lab import data as data
    from .lab import losses as losses
    from .lab import models as models
else:
    # Where each public name lives: "module" for a module, "module:name" for a name in one.
    _PUBLIC = {
        "engine": "engine",
        "extras": "extras",
        "flops": "flops",
        "methods": "methods",
        "rank": "rank",
        "plan": "core.plan",
        "schedules": "core.schedules",
        "DropGrow": "core.method:DropGrow",
        "Extra": "core.method:Extra",
        "Latent": "core.method:Latent",
        "Masked": "core.method:Masked",
        "Score": "core.method:Score",
        "PrunableLayer": "core.method:PrunableLayer",
        "list_methods": "core.method:list_methods",
        "method_info": "core.method:method_info",
        "register": "core.method:register",
        "prune": "core.oneshot:prune",
        "recalibrate": "core.oneshot:recalibrate",
        "sensitivity": "core.oneshot:sensitivity",
        "NotAtTarget": "core.sparsifier:NotAtTarget",
        "Sparsifier": "core.sparsifier:Sparsifier",
        "attach": "core.sparsifier:attach",
        "compile": "engine.compile:compile",
        "load": "formats:load",
        "save": "formats:save",
        "data": "lab.data",
        "losses": "lab.losses",
        "models": "lab.models",
    }
    __all__ = list(_PUBLIC)

    def __getattr__(name):
        if name not in _PUBLIC:
            raise AttributeError(f"module 'rankprune' has no attribute '{name}'")
        import importlib

        path, _, attribute = _PUBLIC[name].partition(":")
        module = importlib.import_module(f"rankprune.{path}")
        return getattr(module, attribute) if attribute else module

    def __dir__():
        return sorted([*_PUBLIC, "__version__"])
