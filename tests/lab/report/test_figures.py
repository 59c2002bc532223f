"""Files for papers: there, of their kind, the same every time, with the numbers of the runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'rankprune[report]'")

from PIL import Image

from rankprune.cli import main
from rankprune.lab.report.figures import write_figures

NAMES = ("training", "tradeoff", "layers")


def test_every_figure_in_every_format(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", str(runs), "--out", str(tmp_path / "f")]) == 0
    files = {path.name: path for path in (tmp_path / "f").iterdir()}
    assert set(files) == {f"{name}.{kind}" for name in NAMES for kind in ("png", "svg", "pdf")}
    assert capsys.readouterr().out.count("\n") == 9
    for name in NAMES:
        image = Image.open(files[f"{name}.png"])
        assert image.width >= 1200
        assert len(image.convert("RGBA").getcolors(1 << 20) or []) > 20
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


def words(path: Path) -> list[str]:
    """What an SVG writes: matplotlib draws letters as paths and leaves the text in a comment."""
    return [re.sub(r"\$\\mathdefault\{(.*)\}\$", r"\1", word) for word in re.findall(r"<!-- (.*?) -->", path.read_text())]


def test_runs_of_one_name_are_told_apart(data: dict[str, Any], tmp_path: Path) -> None:
    rpg = next(run for run in data["runs"] if run["method"] == "rpg")
    same = [{**rpg, "seed": 0}, {**rpg, "seed": 1, "id": "one"}, {**rpg, "seed": 0, "id": "two"}]
    write_figures({**data, "runs": same}, tmp_path)
    for name in ("training", "layers"):
        labels = {word for word in words(tmp_path / f"{name}.svg") if word.startswith("fashion")}
        assert labels == {rpg["id"], "fashion-rpg-98, seed 1", "fashion-rpg-98 (two)"}


def test_axes_of_short_runs(data: dict[str, Any], tmp_path: Path) -> None:
    """Epochs are whole, the dashed line has a name, and an axis of FLOPs has two numbers at least."""
    narrow = [{**point, "macs_share": 0.08 + 0.01 * i} for i, point in enumerate(data["points"])]
    write_figures({**data, "points": narrow}, tmp_path)
    training, tradeoff = words(tmp_path / "training.svg"), words(tmp_path / "tradeoff.svg")
    before = training[: training.index("epoch")]
    assert before == ["1", "2"]
    assert "dense" in tradeoff
    end = tradeoff.index("FLOPs, share of dense (%)")
    assert tradeoff[end - 3 : end] == ["5", "10", "20"]


def test_an_unfinished_run_has_no_tradeoff(going: Path, tmp_path: Path) -> None:
    assert main(["figures", str(going), "--out", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.glob("*.svg")} == {"training", "layers"}
