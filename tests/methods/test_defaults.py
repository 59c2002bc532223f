"""A method's defaults are the same wherever they are stated: in its class, among its bases and on its page."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import rankprune as rp

PAGES = Path(__file__).resolve().parents[2] / "docs" / "methods"
ROW = re.compile(r"^\| (`[^|]*`) \| ([^|]*) \|", re.M)


def defaults(name: str) -> dict[str, Any]:
    cls = rp.method_info(name).cls
    found = {field.name: getattr(cls.plan, field.name) for field in fields(cls.plan)}
    for field in fields(cls):
        found[field.name] = field.default_factory() if field.default_factory is not MISSING else field.default
    return found


def on_the_page(name: str) -> dict[str, Any]:
    """The table of settings: "| `a`, `b` | 0.1, 0.2 | …"; one value may stand for several settings."""
    table = (PAGES / f"{name}.md").read_text(encoding="utf-8").partition("| setting | default |")[2].partition("\n\n")[0]
    stated = {}
    for cell, value in ROW.findall(table):
        names, values = re.findall(r"`(\w+)`", cell), ast.literal_eval(f"({value},)")
        if len(names) == 1 and len(values) > 1:
            values = (values,)
        stated |= dict(zip(names, values if len(values) > 1 else values * len(names), strict=True))
    return stated


@pytest.mark.parametrize("name", rp.list_methods())
def test_the_page_states_the_defaults_of_the_class(name: str) -> None:
    stated, actual = on_the_page(name), defaults(name)
    assert stated
    assert stated == {key: actual.get(key) for key in stated}


@pytest.mark.parametrize("name", rp.list_methods())
def test_the_nearest_declaration_of_a_default_wins(name: str) -> None:
    """A dataclass takes each base's fields whole, so a base that inherits a field can override one that declares it."""
    cls = rp.method_info(name).cls
    for field in fields(cls):
        declaring = next(base for base in cls.__mro__ if field.name in inspect.get_annotations(base))
        declared = next(f for f in fields(declaring) if f.name == field.name)
        assert field.default == declared.default, f"{field.name}: {cls.__name__} against {declaring.__name__}"


TASKS = {"CIFAR": ("cifar10-vgg19", "cifar10-resnet32"), "ImageNet": ("imagenet-resnet50",), "DeiT-S": ("imagenet-deit-s",)}


def stated_by_task(name: str) -> list[tuple[str, str, float]]:
    """From the notes of a page's table: "1000 on CIFAR, 4000 on ImageNet", "DeiT-S: 15,000"."""
    table = (PAGES / f"{name}.md").read_text(encoding="utf-8").partition("| setting | default |")[2].partition("\n\n")[0]
    found = []
    for setting, note in re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", table, re.M):
        for task in TASKS:
            for value in re.findall(rf"([\d.,]*\d) on {task}|{task}: ([\d.,]*\d)", note):
                found.append((setting, task, float("".join(value).replace(",", ""))))
    return found


@pytest.mark.parametrize("name", rp.list_methods())
def test_what_a_page_says_of_a_data_set_is_in_its_recipes(name: str) -> None:
    pytest.importorskip("pydantic")
    from rankprune.lab.recipes.names import task

    for setting, data, value in stated_by_task(name):
        rows = [hyper or {} for recipe in TASKS[data] for row, hyper in task(recipe)["family"]["methods"].items()
                if row == name or (hyper or {}).get("name") == name]  # fmt: skip
        assert all(row.get(setting, defaults(name)[setting]) == value for row in rows), (setting, data, rows)


def test_the_pages_say_something_of_data_sets() -> None:
    """So that the test above cannot pass by finding nothing."""
    assert ("every", "CIFAR", 1000.0) in stated_by_task("granet")
    assert ("every", "DeiT-S", 15000.0) in stated_by_task("svite")


def test_snfs_exchanges_half_of_a_layer_at_first() -> None:
    assert rp.methods.SNFS().grow == 0.5
