"""Files for papers: there, of their kind, the same every time, with the numbers of the runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'rankprune[report]'")

from PIL import Image

from rankprune.cli import main
from rankprune.report.figures import write_figures

NAMES = ("training", "tradeoff", "layers")


def test_every_figure_in_every_format(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", str(runs), "--out", str(tmp_path / "f")]) == 0
    files = {path.name: path for path in (tmp_path / "f").iterdir()}
    assert set(files) == {f"{name}.{kind}" for name in NAMES for kind in ("png", "svg", "pdf")}
    assert capsys.readouterr().out.count("\n") == 9
    for name in NAMES:
        image = Image.open(files[f"{name}.png"])
        assert image.width >= 1200
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20
        assert files[f"{name}.pdf"].read_bytes().startswith(b"%PDF")
        assert "<path" in files[f"{name}.svg"].read_text()


def test_the_same_runs_give_the_same_bytes(data: dict[str, Any], tmp_path: Path) -> None:
    little = {**data, "runs": [{**run, "layers": None} for run in data["runs"]]}
    first = write_figures(little, tmp_path / "a")
    second = write_figures(little, tmp_path / "b")
    assert len(first) == 6
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_names_are_text_and_not_mathematics(data: dict[str, Any], tmp_path: Path) -> None:
    odd = {**data, "points": [], "runs": [{**run, "layers": None, "name": f"_{i} $\\frac{{$ <b>&"} for i, run in enumerate(data["runs"])]}
    files = write_figures(odd, tmp_path)
    text = next(path for path in files if path.name == "training.svg").read_text()
    assert re.search(r"<!-- .*\$.* -->|&lt;b&gt;", text)
    assert "<b>&" not in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def test_an_unfinished_run_has_no_tradeoff(going: Path, tmp_path: Path) -> None:
    assert main(["figures", str(going), "--out", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.glob("*.svg")} == {"training", "layers"}
