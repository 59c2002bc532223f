"""The figures of the paper from records: there, of the numbers, and none without a record."""

from __future__ import annotations

from pathlib import Path

import pytest
from _small import add

pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'rankprune[report]'")

from PIL import Image

from rankprune.cli import main
from rankprune.lab.paper.figures import _figures, write
from rankprune.lab.paper.queue import read_queue
from rankprune.lab.paper.records import Records
from rankprune.lab.paper.runs import Run
from rankprune.lab.paper.table import Evidence

QUEUE = """\
stages:
  - {name: table, task: cifar10-cpu-vgg, methods: [dense, gmp, rpg], sparsities: [99, 99.5], seeds: [0, 1]}
  - {name: small, task: cifar10-cpu-resnet20, methods: [gmp], sparsities: [90]}
  - {name: erk, task: cifar10-cpu-resnet20, methods: [powerprop], sparsities: [90], vary: [{method.distribution: [erk]}]}
  - {name: lambda, task: cifar10-cpu-vgg, methods: [rpg], sparsities: [99.5], vary: [{method.lam: [0, 4], clip_norm: [null]}]}
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "queue.yaml").write_text(QUEUE)
    return tmp_path


def fill(results: Path) -> None:
    records = Records(results / "records")
    for run in read_queue(results / "queue.yaml", records).runs():
        add(records, run, 0.9 - (run.percent or 0) / 200 + 0.01 * run.seed)


def drawn(results: Path) -> dict[str, list[object]]:
    """The axes of each figure by its name."""
    from matplotlib.figure import Figure

    records = Records(results / "records")
    found = {}
    for name, draw in _figures(Evidence(read_queue(results / "queue.yaml", records), records)):
        figure = Figure(layout="constrained")
        draw(figure)
        found[name] = figure.axes
    return found


def lines(axes: object) -> dict[str, list[tuple[float, float]]]:
    return {c.get_label(): [tuple(xy) for xy in c.lines[0].get_xydata()] for c in axes.containers}  # type: ignore[attr-defined]


def test_nothing_is_drawn_without_records(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "figures", "--results", str(results)]) == 0
    assert "nothing to draw" in capsys.readouterr().out
    assert list((results / "figures").glob("*")) == []


def test_curves_are_the_records(results: Path) -> None:
    fill(results)
    found = drawn(results)
    assert set(found) == {"cifar10", "rank", "flops", "lambda"}
    small, vgg = found["cifar10"]
    assert (small.get_title(), vgg.get_title()) == ("ResNet-20", "small VGG")  # type: ignore[attr-defined]
    curve = lines(vgg)["RPG"]
    assert [x for x, _ in curve] == pytest.approx([0.5, 1.0])
    assert [y for _, y in curve] == pytest.approx([40.75, 41.0])  # means of two seeds
    assert lines(small) == {"GMP": [(10.0, pytest.approx(45.0))]}
    assert [y for _, y in lines(found["rank"][1])["GMP"]] == [0.5, 0.5]
    assert lines(found["flops"][0]) == {name: [(20.0, pytest.approx(45.0))] for name in ("GMP", "PowerPropagation, ERK")}
    accuracy, rank = found["lambda"]
    assert lines(accuracy) == {"rank, mean over layers": [(0.0, pytest.approx(40.25)), (4.0, pytest.approx(40.25))]}
    assert rank.get_ylabel().startswith("δ-rank")  # type: ignore[attr-defined]


def test_files_are_pictures_and_always_the_same(results: Path) -> None:
    fill(results)
    first = {path.name: path.read_bytes() for path in write(results)}
    assert len(first) == 4 * 3
    assert first == {path.name: path.read_bytes() for path in write(results)}
    for path in (results / "figures").glob("*.png"):
        assert len(Image.open(path).convert("RGBA").getcolors(1 << 20) or []) > 20


def test_part_of_a_queue_is_enough(results: Path) -> None:
    add(Records(results / "records"), Run("cifar10-cpu-vgg", "gmp", 99.0), 0.5)
    assert set(drawn(results)) == {"cifar10", "rank", "flops"}
