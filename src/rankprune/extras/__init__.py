"""Extras compose with any method: `attach(…, "acdc+ham")` or `extras=[rankprune.extras.HAM()]`."""

from __future__ import annotations

from rankprune.core.registry import create_extra, list_extras, register_extra

from .grace import Grace
from .ham import HAM
from .rank_floor import RankFloor
from .rank_steer import RankSteer
from .sparseopt import SparseOpt
from .survival import Survival
from .tail_taylor import TailTaylor

__all__ = [
    "HAM", "Grace", "RankFloor", "RankSteer", "SparseOpt", "Survival", "TailTaylor", "create_extra", "list_extras",
]  # fmt: skip

for _extra in (Grace, HAM, RankFloor, RankSteer, SparseOpt, TailTaylor):
    register_extra(_extra)
