"""Extras compose with any method: `attach(…, "acdc+ham")` or `extras=[rankprune.extras.HAM()]`."""

from __future__ import annotations

import fnmatch
from dataclasses import fields
from typing import Any

from rankprune._util import nearest
from rankprune.core.method import Extra

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

_EXTRAS: dict[str, type[Extra]] = {cls.name: cls for cls in (Grace, HAM, RankFloor, RankSteer, SparseOpt, TailTaylor)}


def list_extras(pattern: str = "*") -> list[str]:
    """Names of the extras that match a shell pattern."""
    return sorted(fnmatch.filter(_EXTRAS, pattern))


def create_extra(name: str, **options: Any) -> Extra:
    """An extra by name; an unknown name or option is an error that names the nearest."""
    if name not in _EXTRAS:
        raise ValueError(f"there is no extra {name!r}: {nearest(name, _EXTRAS)}")
    known = [option.name for option in fields(_EXTRAS[name])]  # type: ignore[arg-type]
    if unknown := [option for option in options if option not in known]:
        raise ValueError(f"{name} has no option {unknown[0]!r}: {nearest(unknown[0], known)}")
    return _EXTRAS[name](**options)
