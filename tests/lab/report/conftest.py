"""Three small runs, trained once, and a browser where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankprune.lab.recipes import load_recipe
from rankprune.lab.report.collect import Collector
from rankprune.lab.training import train

TINY = ("epochs=2", "data.limit_train=64", "data.limit_test=50", "data.batch_size=32")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dense, magnitude at 95 % and rpg at 98 %, all finished."""
    out = tmp_path_factory.mktemp("report") / "runs"
    train(load_recipe("fashion-dense", TINY), out)
    train(load_recipe("fashion-magnitude-95", TINY), out)
    train(load_recipe("fashion-rpg-98", [*TINY, "method.every=1"]), out)
    return out


@pytest.fixture(scope="session")
def data(runs: Path) -> dict[str, Any]:
    return Collector([runs]).collect()


@pytest.fixture
def going(runs: Path, tmp_path: Path) -> Path:
    """The rpg run as it stood after its first epoch."""
    folder = tmp_path / "going"
    shutil.copytree(next(runs.glob("*-rpg-*")), folder)
    for name in ("result.json", "model.sparse.safetensors"):
        (folder / name).unlink()
    first, _ = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text(first + "\n")
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with playwright.sync_playwright() as p:
        # Inside containers and as root its own sandbox cannot start; the pages are ours.
        running = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()
