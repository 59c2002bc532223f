"""The trainer in several processes: the same run as in one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from _processes import Server

from _runs import SMALL, model_bytes
from rankprune.cli import main
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.training import checkpoint

DOUBLE = [
    "fashion-rpg-90", *SMALL, "method.every=2", "model.name=test-double", "epochs=2", "data.limit_test=97",
    "save.every_steps=3",
]  # fmt: skip
VARIED = ["ema.decay=0.9", "accumulate=3", "clip_norm=1", "optimizer={name: adamw, lr: 0.01, weight_decay: 0.05}"]


def state(out: Path) -> dict[str, Any]:
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return checkpoint.load(folder)[0]


def folder_of(out: Path) -> Path:
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return folder


def assert_same(first: Path, second: Path) -> None:
    """Masks bit for bit; weights, averages, losses and accuracies to rounding."""
    one, two = state(first), state(second)
    layers = [[group["sites"] for group in s["sparsifier"]["groups"]] for s in (one, two)]
    for mine, other in zip(*layers, strict=True):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[key]["mask"], other[key]["mask"]) for key in mine)
    for kind in ("model", "ema"):
        assert (one[kind] is None) == (two[kind] is None)
        for key, value in (one[kind] or {}).items():
            assert torch.allclose(value, two[kind][key], rtol=0, atol=1e-10), key
    for entries, others in zip(one["optimizer"]["state"].values(), two["optimizer"]["state"].values(), strict=True):
        assert all(torch.allclose(entries[key], others[key], rtol=0, atol=1e-10) for key in entries)
    lines = [RunFolder(folder_of(out)).metrics() for out in (first, second)]
    for line, other in zip(*lines, strict=True):
        assert {k: v for k, v in line.items() if k != "seconds"} == pytest.approx({k: v for k, v in other.items() if k != "seconds"}, abs=1e-6)
    results = [json.loads((folder_of(out) / "result.json").read_text()) for out in (first, second)]
    for key in ("kept", "sparsity", "steps", "macs_sparse", "training_flops", "delta_rank_ratio", "accuracy_last"):
        assert results[0][key] == pytest.approx(results[1][key], rel=1e-9), key


@pytest.fixture(scope="module")
def alone(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, more in {"plain": [], "varied": VARIED}.items():
        found[name] = tmp_path_factory.mktemp(name)
        server.run([*DOUBLE, *more], found[name])
    return found


@pytest.mark.parametrize(
    ("case", "how"),
    [("plain", "ddp"), ("varied", "fsdp"), *(pytest.param(*pair, marks=pytest.mark.long) for pair in (("plain", "fsdp"), ("varied", "ddp")))],
)
def test_two_processes_give_the_run_of_one(server: Server, alone: dict[str, Path], tmp_path: Path, how: str, case: str) -> None:
    more = VARIED if case == "varied" else []
    server.run([*DOUBLE, *more, f"parallel={how}"], tmp_path, world=2)
    assert_same(tmp_path, alone[case])


@pytest.mark.long
def test_four_processes_give_the_run_of_one(server: Server, alone: dict[str, Path], tmp_path: Path) -> None:
    server.run(DOUBLE, tmp_path, world=4)
    assert_same(tmp_path, alone["plain"])


def copied(folder: Path, out: Path) -> Path:
    shutil.copytree(folder, out / folder.name)
    return out


@pytest.mark.parametrize(("how", "kind"), [("ddp", "term"), pytest.param("fsdp", "int", marks=pytest.mark.long)])
def test_a_signal_to_one_process_stops_and_saves_all(server: Server, alone: dict[str, Path], tmp_path: Path, how: str, kind: str) -> None:
    recipe, cut = [*DOUBLE, *VARIED, f"parallel={how}"], tmp_path / "cut"
    processes = server.start(recipe, cut, 2, {"rank": 1, "at": 5, "kind": kind})  # the second batch of the second step
    assert [p.wait() for p in processes] == [128 + (signal.SIGTERM if kind == "term" else signal.SIGINT)] * 2
    assert "Stopped at step 1 of 8" in processes[0].sentence
    assert processes[1].said == ""
    assert state(cut)["progress"]["step"] == 1
    server.run(recipe, tmp_path / "whole", world=2)
    moved = copied(folder_of(cut), tmp_path / "single")
    server.run(recipe, cut, world=2)
    assert model_bytes(folder_of(cut)) == model_bytes(folder_of(tmp_path / "whole"))
    (process,) = server.start(recipe, moved)  # on one process it is the same run but for rounding
    assert process.wait() == 0
    assert "started with processes 2 and continues with 1" in process.said
    assert_same(moved, alone["varied"])


@pytest.mark.parametrize("more", [["amp=bf16", "mix.prob=0.9"], pytest.param(["amp=fp16", "clip_norm=1"], marks=pytest.mark.long)])
def test_with_batch_norm_and_amp_each_process_has_its_statistics_and_the_main_one_s_are_saved(server: Server, tmp_path: Path, more: list[str]) -> None:
    """In half precision, fp16 with its scaler."""
    recipe = ["fashion-rpg-90", *SMALL, "method.every=2", "epochs=2", *more]
    for how in ("ddp", "fsdp"):
        server.run([*recipe, f"parallel={how}"], tmp_path / how, world=2)
    found = [state(tmp_path / how) for how in ("ddp", "fsdp")]
    for key, value in found[0]["model"].items():
        assert torch.allclose(value, found[1]["model"][key], atol=1e-2), key  # half precision, other orders of sums
    result = json.loads((folder_of(tmp_path / "ddp") / "result.json").read_text())
    assert result["kept"] == 138


@pytest.mark.long
def test_compiled_in_two_processes_gives_the_run_of_one(server: Server, alone: dict[str, Path], tmp_path: Path) -> None:
    server.run([*DOUBLE, "compile=true"], tmp_path, world=2)
    assert_same(tmp_path, alone["plain"])


@pytest.mark.long
def test_a_detector_under_torchrun(tmp_path: Path) -> None:
    """The real Mask R-CNN in miniature on two processes: the exact target, and AP of all images once."""
    pytest.importorskip("faster_coco_eval", reason="the extra detection is not installed")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "rankprune", "train"]
    command += ["coco-maskrcnn-rpg-50", "--smoke", "--json", "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["metric"] == "box_ap"
    assert result["kept"] == round(result["prunable"] * 0.5)
    assert 0 <= result["accuracy_last"] <= 1


def test_a_batch_that_cannot_be_shared_is_one_sentence(server: Server, tmp_path: Path) -> None:
    processes = server.start([*DOUBLE, "data.batch_size=15"], tmp_path, 2)
    assert processes[0].wait() == 2
    assert "batch_size=15 cannot be shared equally by 2 processes" in processes[0].sentence
    processes[1].wait()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command as it is documented; and the run is found again, by one process, with one answer."""
    command = ["train", "fashion-rpg-95", "--smoke", "--json", "--out", str(tmp_path)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "rankprune", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launch, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert main(command) == 0
    first, second = json.loads(done.stdout), json.loads(capsys.readouterr().out)
    assert not first["finished_before"]
    assert second["finished_before"]
    del first["finished_before"], second["finished_before"]
    assert first == second
    environment = json.loads((folder_of(tmp_path) / "environment.json").read_text())
    assert environment["processes"] == 2
