"""One file a method. `rankprune.list_methods()` names them; `rankprune.methods.RPG(...)` configures one."""

from __future__ import annotations

from typing import Any

from rankprune.core.registry import list_methods, method_info


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    for method in list_methods():
        if method_info(method).cls.__name__ == name:
            return method_info(method).cls
    raise AttributeError(f"there is no method class {name!r} in rankprune.methods")
