"""Damaged files of every format: no abort, no hang, no error but the format's own, in one sentence (see `_mutate.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from _mutate import FORMATS
from _sanitized import sanitized_library

PROGRAM = Path(__file__).with_name("_mutate.py")
FEW, FEW_PLANS = 25, 60  # the processes' start costs more than these
MANY = {"plan": 10_000}  # others 1,500
OTHERS = [name for name in FORMATS if name != "plan"]


def attack(names: list[str], seed: int, count: int, seconds: int, asan: tuple[Path, dict[str, str]] | None = None) -> None:
    """In processes of their own, with bounds on their memory and time; plans run on kernels that check every address."""
    library, env = ([str(asan[0])], asan[1]) if asan else ([], dict(os.environ))
    line = [sys.executable, str(PROGRAM), ",".join(names), str(seed), str(count), *library]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    every = [json.loads(line) for line in done.stdout.splitlines()]
    assert [found["name"] for found in every] == names
    for found in every:
        assert found["raw"] == [], found["name"]
        assert found["read"] + found["refused"] == count
        assert found["refused"] > count // 10, found["name"]


def test_some_dozen_damaged_files() -> None:
    attack(OTHERS, 0, FEW, 240)


def test_some_dozen_damaged_plans(tmp_path: Path) -> None:
    attack(["plan"], 0, FEW_PLANS, 240, sanitized_library(tmp_path, "-O0"))  # compiled in a third of the time


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_damaged_plans_and_as_many_others(name: str, tmp_path: Path) -> None:
    attack([name], 1, MANY.get(name, 1500), 3500, sanitized_library(tmp_path) if name == "plan" else None)
