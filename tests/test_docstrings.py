"""Every public function explains each of its parameters, in a Google-style "Args" section."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rankprune

ROOT = Path(rankprune.__file__).parent
ROOMS = ("_util", "openmp", "prunable", "flops", "core", "methods", "extras", "rank", "formats", "integrations",
         "engine", "lab", "cli")  # fmt: skip
OPTIONAL = {"rankprune.integrations.lightning", "rankprune.integrations.transformers"}  # need libraries to be imported
NOT_EXPLAINED = {"self", "cls"}


def modules() -> Iterator[str]:
    for room in ROOMS:
        paths = sorted((ROOT / room).rglob("*.py")) or [ROOT / f"{room}.py"]
        for path in paths:
            yield ".".join(("rankprune", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def public(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any], list[str]]]:
    """Each public function and method that a module defines, with the docstrings that may explain its parameters.

    A method that overrides another has the parameters that are explained there; what another library calls is left to
    its documentation.
    """
    for name, item in vars(module).items():
        if name.startswith("_") or getattr(item, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(item):
            yield name, item, [item.__doc__ or ""]
        elif inspect.isclass(item):
            fields = getattr(item, "__dataclass_fields__", {})  # a function may be a field's default
            for method, value in vars(item).items():
                function = inspect.unwrap(getattr(value, "__func__", value))
                owners = [base for base in item.__mro__ if method in vars(base)]
                foreign = any(not base.__module__.startswith("rankprune") for base in owners)
                if not method.startswith("_") and method not in fields and inspect.isfunction(function) and not foreign:
                    inherited = [vars(base)[method] for base in owners]
                    yield f"{name}.{method}", function, [getattr(f, "__func__", f).__doc__ or "" for f in inherited]


def explained(doc: str) -> set[str]:
    """The parameters in the "Args" section of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", inspect.cleandoc(doc) + "\n", re.M)
    return set(re.findall(r"^    \*{0,2}(\w+): ", section[1], re.M)) if section else set()


@pytest.mark.parametrize("name", list(modules()))
def test_every_parameter_is_explained(name: str) -> None:
    if name in OPTIONAL:
        pytest.importorskip(name.rpartition(".")[2])
    missing = []
    for qualified, function, docs in public(import_module(name)):
        parameters = {p for p in inspect.signature(function).parameters if not p.startswith("_")} - NOT_EXPLAINED
        if not any(docs) or parameters - set().union(*map(explained, docs)):
            missing.append(qualified)
    assert missing == [], f"{name}: no docstring, or no Args entry for each parameter"


def test_it_can_fail() -> None:
    assert explained("What.\n\nArgs:\n    a: One.\n    **b: Two,\n        on two lines.\n\nReturns:\n    c: No.") == {"a", "b"}
    assert explained("What `a` does.") == set()
