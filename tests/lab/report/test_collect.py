"""What the page is told, against independent computations and by hand."""

from __future__ import annotations

import base64
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rankprune import flops, rank
from rankprune.lab.report.collect import Collector
from rankprune.lab.report.layers import Layers, layers_of
from rankprune.lab.report.picture import picture
from rankprune.lab.report.points import points
from rankprune.lab.report.runs import NoRun, find, flatten, read_run
from rankprune.lab.runs.open_model import open_model


def test_layers_are_those_of_the_rank_profile(runs: Path, data: dict[str, Any]) -> None:
    folder = next(runs.glob("*-rpg-*"))
    model, example, _ = open_model(folder)
    profile, macs = rank.profile(model, 0.1), {row.name: row for row in flops.count(model, example).rows}
    layers = next(run for run in data["runs"] if run["method"] == "rpg")["layers"]
    assert [layer["name"] + ".weight" for layer in layers] == [row.name for row in profile.rows]
    for layer, row in zip(layers, profile.rows):
        assert (layer["kept"], layer["full"], layer["exact"]) == (row.nonzeros, row.full_rank, row.exact_rank)
        assert (layer["delta_rank"], layer["dead"]) == (row.delta_rank, row.dead_rows)
        assert layer["density"] == pytest.approx(row.density)
        assert layer["macs_sparse"] == round(macs[row.name].sparse)
        assert sum(v * v for v in layer["spectrum"]["value"]) <= 1 + 1e-3
    assert sum(layer["kept"] for layer in layers) == sum(row.nonzeros for row in profile.rows)


def test_a_layer_by_hand() -> None:
    net = torch.nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[3.0, 0, 0, 0], [0, 4.0, 0, 0], [0, 0, 0, 0]]))
    (layer,) = layers_of(net, None, 0.1, 8)
    assert (layer["kept"], layer["dead"], layer["exact"], layer["delta_rank"], layer["full"]) == (2, 1, 2, 2, 3)
    assert layer["spectrum"] == {"at": [1, 2, 3], "value": [0.8, 0.6, 0.0]}
    assert layer["filters"] == {"at": [1, 2, 3], "kept": [1, 1, 0]}


def test_a_layer_that_is_nan_or_zero_is_still_shown() -> None:
    for value in (float("nan"), 0.0):
        net = torch.nn.Linear(3, 2, bias=False)
        torch.nn.init.constant_(net.weight, value)
        (layer,) = layers_of(net, None, 0.1, 8)
        assert layer["delta_rank"] == 0
        json.dumps(layer, allow_nan=False)


def pixels(src: str) -> np.ndarray:
    raw = base64.b64decode(src.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(raw)).convert("RGBA"))[:, :, 3]


def test_a_picture_shows_kernels_and_empty_rows() -> None:
    weights = np.zeros((3, 2 * 9))
    weights[0, :9] = 1  # a full kernel
    weights[2, 9] = 1  # one weight of nine
    shown = picture(weights, 9, 16)
    assert (shown.rows, shown.columns, shown.cell, shown.strongest) == (3, 2, (1, 1), 1.0)
    expected = math.ceil(math.sqrt(1 / 9) * 15) * 17
    assert pixels(shown.src).tolist() == [[255, 0], [0, 0], [0, expected]]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_a_picture_is_empty_exactly_where_the_mask_is(rows: int, columns: int, side: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((rows, columns)) < 0.05
    shown = picture(mask, 1, side)
    alpha = pixels(shown.src)
    assert alpha.shape == (min(rows, side), min(columns, side))
    edges = [np.linspace(0, n, min(n, side) + 1).round().astype(int) for n in (rows, columns)]
    for i in range(alpha.shape[0]):
        for j in range(alpha.shape[1]):
            cell = mask[edges[0][i] : edges[0][i + 1], edges[1][j] : edges[1][j + 1]]
            assert (alpha[i, j] > 0) == bool(cell.any())


def run(setting: str, accuracy: float | None, macs: int = 10) -> dict[str, Any]:
    result = {"accuracy_last": accuracy, "sparsity": 0.9, "macs_sparse": macs, "macs_dense": 100}
    return {"id": f"{setting}{accuracy}", "name": "n", "method": "m", "task": "t", "setting": setting, "result": result}


def test_seeds_are_one_point_with_its_standard_error() -> None:
    found = points([run("a", 0.6, 10), run("a", 0.8, 20), run("b", 0.5), run("c", None), {**run("d", 0.1), "result": None}])
    assert [point["runs"] for point in found] == [["a0.6", "a0.8"], ["b0.5"]]
    assert found[0]["accuracy"] == pytest.approx(0.7)
    assert found[0]["error"] == pytest.approx(0.1)  # stdev 0.1414 / sqrt 2
    assert found[0]["macs_share"] == pytest.approx(0.15)
    assert found[1]["error"] is None


def test_the_reference_is_the_trained_dense_run_or_else_a_new_network(runs: Path, data: dict[str, Any]) -> None:
    task = data["runs"][0]["task"]
    assert data["references"][task]["run"].startswith("fashion-dense")
    alone = Collector([next(runs.glob("*-rpg-*"))]).collect()
    reference = alone["references"][task]
    assert (reference["run"], reference["label"]) == (None, "dense, untrained")
    assert all(layer["density"] == 1.0 for layer in reference["layers"])
    assert [x["shape"] for x in reference["layers"]] == [x["shape"] for x in alone["runs"][0]["layers"]]


def test_an_unfinished_run_has_no_result_and_the_layers_of_its_checkpoint(going: Path) -> None:
    (found,) = Collector([going]).collect()["runs"]
    assert found["result"] is None
    assert [line["epoch"] for line in found["metrics"]] == [1]
    assert len(found["layers"]) == 9


def test_seeds_of_unfinished_runs_are_one_setting_with_finished_ones(runs: Path, going: Path) -> None:
    assert read_run(going)["setting"] == read_run(next(runs.glob("*-rpg-*")))["setting"]


def test_damaged_weights_leave_the_rest_standing(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(next(runs.glob("*-rpg-*")), folder)
    model = folder / "model.sparse.safetensors"
    model.write_bytes(model.read_bytes()[:-40])
    said: list[str] = []
    (found,) = Collector([folder]).collect(said.append)["runs"]
    assert found["layers"] is None
    assert "damaged" in found["problem"]
    assert any("without its layers" in line for line in said)
    assert found["result"]["accuracy_last"] is not None


def test_numbers_that_json_lacks_become_none(going: Path) -> None:
    with open(going / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 2, "train_loss": NaN, "test_top1": "<b>", "sparsity": Infinity, "at_target": 1}\n5\n{"ep')
    found = read_run(going)
    assert len(found["metrics"]) == 2
    assert found["metrics"][1]["train_loss"] is found["metrics"][1]["accuracy"] is found["metrics"][1]["sparsity"] is None
    assert found["metrics"][1]["at_target"] is False
    json.dumps(found, allow_nan=False)


def test_flatten() -> None:
    assert dict(flatten({"a": {"b": [1, 2], "c": {}}, "d": None, "e": []})) == {"a.b": "1, 2", "a.c": "none", "d": "none", "e": "none"}
    assert dict(flatten({"a": 0.0, "b": [1.0, 0.5], "c": 1e300, "d": True})) == {"a": "0", "b": "1, 0.5", "c": "1e+300", "d": "True"}


def test_folders_are_found_once_and_a_path_without_runs_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    one = next(runs.glob("*-rpg-*"))
    assert len(find([runs, one, str(one) + "/"])) == 3
    with pytest.raises(NoRun, match=r"holds no run: give a run folder, which has a recipe\.yaml"):
        find([tmp_path])


def test_folders_of_one_name_stay_apart(going: Path, tmp_path: Path) -> None:
    twin = tmp_path / "elsewhere" / "going"
    shutil.copytree(going, twin)
    assert [run["id"] for run in Collector([going, twin]).collect()["runs"]] == ["going", "going (2)"]


def test_layers_are_worked_out_when_the_weights_change_and_not_too_often(going: Path) -> None:
    layers = Layers(8)
    first = layers.of(going, 0.1)
    assert layers.of(going, 0.1) is first
    (going / "last.ckpt").touch()
    assert layers.of(going, 0.1) is not first
    patient = Layers(8, patience=1e6)
    first = patient.of(going, 0.1)
    (going / "last.ckpt").touch()
    assert patient.of(going, 0.1) is first


def test_a_detector_is_measured_by_its_boxes(going: Path) -> None:
    lines = ['{"epoch": 1, "test_box_ap": 0.25, "test_mask_ap": 0.2, "sparsity": 0.5, "at_target": true}\n']
    (going / "metrics.jsonl").write_text("".join(lines))
    found = read_run(going)
    assert (found["measure"], found["metrics"][0]["accuracy"]) == ("AP of boxes", 0.25)


@pytest.mark.parametrize("file", ["recipe.yaml", "environment.json"])
def test_one_damaged_run_among_several_is_named_and_left_out(file: str, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    first, *others = sorted((tmp_path / "runs").iterdir())
    (first / file).write_text("{")
    said: list[str] = []
    data = Collector([tmp_path / "runs"]).collect(said.append)
    assert sorted(run["id"] for run in data["runs"]) == [folder.name for folder in others]
    assert any(text.startswith("skipped: ") and file in text for text in said)


def test_metrics_with_bytes_that_are_not_text_keep_their_other_lines(going: Path) -> None:
    before = read_run(going)["metrics"]
    with (going / "metrics.jsonl").open("ab") as file:
        file.write(b'{"epoch": \xff\xfe')
    assert read_run(going)["metrics"] == before
