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
FEW = {"plan": 60}  # others 25; the processes' start costs more than these
MANY = {"plan": 10_000}  # others 1,500


@pytest.fixture(scope="module")
def asan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    return sanitized_library(tmp_path_factory.mktemp("kernels"))


def attack(name: str, seed: int, count: int, seconds: int, request: pytest.FixtureRequest) -> None:
    """In a process of its own, with bounds on its memory and time; plans run on kernels that check every address."""
    library, env = request.getfixturevalue("asan") if name == "plan" else ((), dict(os.environ))
    line = [sys.executable, str(PROGRAM), name, str(seed), str(count), *([str(library)] if library else [])]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["raw"] == []
    assert found["read"] + found["refused"] == count
    assert found["refused"] > count // 10


@pytest.mark.parametrize("name", FORMATS)
def test_some_dozen_damaged_files(name: str, request: pytest.FixtureRequest) -> None:
    attack(name, 0, FEW.get(name, 25), 240, request)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_damaged_plans_and_as_many_others(name: str, request: pytest.FixtureRequest) -> None:
    attack(name, 1, MANY.get(name, 1500), 3500, request)
