"""A recipe end to end: what lies in the folder, and whether it is true."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
import torch
import yaml

import rankprune
from _runs import Plug, Tiny, data_of, model_bytes, run, small
from rankprune import flops
from rankprune.lab.models import create_model
from rankprune.lab.models.registry import _BUILDERS
from rankprune.lab.recipes import load_recipe
from rankprune.lab.recipes.load import check
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.training import NanLoss, OffTarget, RunError, Unfinished, checkpoint, train
from rankprune.lab.training.evaluate import evaluate
from rankprune.lab.training.loop import Progress
from rankprune.lab.training.run import finish
from rankprune.lab.training.smoke import smaller
from rankprune.lab.training.task import build


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return run(small(), tmp_path_factory.mktemp("runs")).folder


def test_the_folder_holds_what_it_should(finished: Path) -> None:
    names = {"recipe.yaml", "environment.json", "metrics.jsonl", "last.ckpt", "previous.ckpt", "best.ckpt"}
    names |= {"model.sparse.safetensors", "result.json"}
    assert names <= {path.name for path in finished.iterdir()}
    assert finished.name.startswith("fashion-rpg-90-")
    assert check(yaml.safe_load((finished / "recipe.yaml").read_text())) == small()
    assert json.loads((finished / "environment.json").read_text())["torch"] == torch.__version__


def test_one_line_an_epoch(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in lines] == [(1, 10), (2, 20), (3, 30)]
    for line in lines:
        assert 0 <= line["test_top1"] <= line["test_top5"] <= 1
        assert line["at_target"] == (line["sparsity"] == line["target_sparsity"])
    assert [line["at_target"] for line in lines] == [False, False, True]  # prune_end is 0.7 of 30 steps
    assert lines[0]["sparsity"] < lines[1]["sparsity"] < lines[2]["sparsity"]


def test_the_result_is_that_of_the_saved_model(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    model = create_model("test-tiny", 10, 1)
    rankprune.load(finished / "model.sparse.safetensors", model)
    task = build(small(), data_of(16, 160, 100))
    assert evaluate(model, task.data)["top1"] == result["accuracy_last"]
    prunable = 8 * 9 + 16 * 72 + 160
    assert result["prunable"] == prunable
    assert result["kept"] == round(prunable * 0.1)
    assert result["sparsity"] == 1 - result["kept"] / prunable
    nonzero = sum(int(p.count_nonzero()) for p in model.parameters() if p.ndim > 1)
    assert nonzero <= result["kept"]
    assert result["macs_dense"] == 72 * 49 + 1152 * 16 + 160
    assert result["macs_sparse"] == flops.count(model, torch.zeros(1, 1, 14, 14)).sparse
    assert result["bytes_sparse"] == (finished / "model.sparse.safetensors").stat().st_size
    rows = torch.cat([(p.flatten(1) == 0).all(1) for p in model.parameters() if p.ndim > 1])
    assert (result["dead_filters"], result["filters"]) == (int(rows.sum()), 34)


def test_the_result_counts_updates_and_what_stays_of_growth(finished: Path, tmp_path: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    task = build(small(), data_of(16, 160, 100))
    assert task.sparsifier is not None
    assert result["updates"] == len(task.sparsifier.groups[0].plan.steps) > 3
    assert 0 <= result["survival"]["3"] <= result["survival"]["1"] <= 1
    assert result["precision"] == "float32"
    plain = run(small("fashion-gmp-90", "epochs=2", "amp=bf16"), tmp_path).result
    assert plain.updates is not None
    assert plain.updates > 3
    assert plain.survival == {}
    assert plain.precision == "bfloat16"


def test_precision_by_itself_is_what_the_cpu_multiplies_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for fast, dtype in ((True, torch.bfloat16), (False, None)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda fast=fast: fast, raising=False)
        assert build(small("fashion-dense", "amp=auto", "device=cpu"), data_of(16, 160, 100)).precision == dtype


def test_best_is_chosen_among_epochs_at_the_target_only(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert result["best_epoch"] == 3
    best = checkpoint.read(finished / "best.ckpt")
    model = create_model("test-tiny", 10, 1)
    model.load_state_dict(best["model"])
    assert evaluate(model, build(small(), data_of(16, 160, 100)).data)["top1"] == result["accuracy_best"] == best["metrics"]["test_top1"]


def test_methods_with_extras_and_methods_that_look_at_data(tmp_path: Path) -> None:
    for name in ("rpg+ham", *(m for m in rankprune.list_methods() if "data" in rankprune.method_info(m).needs)):
        recipe = smaller(small("fashion-random-90", f"method.name={name}"))
        outcome = train(recipe, tmp_path, data=data_of(16, 64, 64))
        assert outcome.result.kept == 138, name


def test_a_finished_run_is_found_and_not_run_again(finished: Path) -> None:
    plug = Plug()
    outcome = run(small(), finished.parent, callback=plug)
    assert outcome.finished_before
    assert outcome.folder == finished
    assert plug.steps == []


def test_dense_runs_count_every_epoch(tmp_path: Path) -> None:
    outcome = run(small("fashion-dense", "epochs=2"), tmp_path)
    lines = RunFolder(outcome.folder).metrics()
    assert outcome.result.accuracy_best == max(line["test_top1"] for line in lines)
    assert outcome.result.sparsity == 0
    assert outcome.result.kept == outcome.result.prunable
    assert outcome.result.training_flops == 20 * 16 * 6 * outcome.result.macs_dense


def test_training_flops_of_a_fixed_mask(tmp_path: Path) -> None:
    outcome = run(small("fashion-magnitude-90", "epochs=1"), tmp_path)
    task = build(small("fashion-magnitude-90", "epochs=1"), data_of(16, 160, 100))
    assert task.sparsifier is not None
    positions = {"conv1.weight": 49, "conv2.weight": 16, "head.weight": 1}
    macs = sum(int(mask.sum()) * positions[name] for name, mask in task.sparsifier.masks.items())
    assert outcome.result.training_flops == pytest.approx(10 * 16 * 6 * macs)


def test_a_network_that_uses_a_layer_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(Tiny):
        def __init__(self, num_classes: int, in_channels: int) -> None:
            super().__init__(num_classes, in_channels)
            self.again = self.head

    monkeypatch.setitem(_BUILDERS, "test-twice", lambda num_classes, in_channels: Twice(num_classes, in_channels))
    once = run(small("fashion-dense", "epochs=1"), tmp_path).result
    twice = run(small("fashion-dense", "epochs=1", "model.name=test-twice"), tmp_path).result
    same = ("accuracy_last", "kept", "prunable", "macs_dense")
    assert [getattr(twice, key) for key in same] == [getattr(once, key) for key in same]
    assert twice.bytes_dense - once.bytes_dense > 4 * (16 * 10 + 10)  # a plain file has it under both names


def test_an_unfinished_run_needs_resume(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        run(small(), tmp_path, callback=Plug(4))
    with pytest.raises(Unfinished, match="--resume"):
        run(small(), tmp_path)


def test_two_writers(tmp_path: Path) -> None:
    folder = RunFolder.of(small(), tmp_path)
    folder.create()
    with folder.locked(), pytest.raises(RunError, match=f"process {os.getpid()}"):
        run(small(), tmp_path)
    assert run(small(), tmp_path).result.steps == 30


def test_a_run_that_still_trains_is_not_called_unfinished(tmp_path: Path) -> None:
    """Its second starter must not be told to remove the folder under it."""
    with pytest.raises(RunError):
        run(small(), tmp_path, callback=Plug(4))
    with RunFolder.of(small(), tmp_path).locked(), pytest.raises(RunError, match=f"process {os.getpid()}: wait"):
        run(small(), tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    recipe = small("fashion-rpg-90", "optimizer.lr=1e20", "save.every_steps=1")
    plug = Plug()
    with pytest.raises(NanLoss) as caught:
        run(recipe, tmp_path, callback=plug)
    assert f"step {plug.steps[-1] + 1} " in str(caught.value)
    state, problem = checkpoint.load(RunFolder.of(recipe, tmp_path).path)
    assert problem == ""
    assert state["progress"]["step"] <= plug.steps[-1]
    assert all(value.isfinite().all() for value in state["model"].values())


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    recipe = small("fashion-gmp-90", "save.every_steps=1")
    folder = RunFolder.of(recipe, tmp_path).path
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    seen = []

    def fill_the_disk() -> None:
        seen.append(checkpoint.load(folder)[0]["progress"]["step"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))

    try:
        with pytest.raises(RunError, match=r"last|next") as caught:
            run(recipe, tmp_path, callback=Plug(5, fill_the_disk))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in str(caught.value)
    state, problem = checkpoint.load(folder)
    assert (state["progress"]["step"], problem) == (seen[0], "")
    assert not list(folder.glob(".*ckpt*"))
    undisturbed = run(small("fashion-gmp-90", "save.every_steps=1"), tmp_path / "other").folder
    resumed = run(recipe, tmp_path, resume=True).folder
    assert model_bytes(resumed) == model_bytes(undisturbed)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not be written"):
        run(small(), tmp_path / "file" / "runs")


def test_off_target_is_an_error_and_no_result(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    task = build(small("fashion-gmp-90"), data_of(16, 160, 100))  # and not one step of training
    with pytest.raises(OffTarget, match="took no step"):
        finish(task, folder, Progress())
    assert folder.result() is None
    assert list(tmp_path.iterdir()) == []


def test_mistakes_leave_no_folder_behind(tmp_path: Path) -> None:
    for overrides in (["model.name=no-such"], ["model.weights=absent.pth"], ["model.args={depth: 3}"], ["device=nope"]):
        with pytest.raises(ValueError) as caught:
            train(load_recipe("fashion-rpg-98", overrides), tmp_path)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
