"""Results and checkpoints that are not what they were written as: one sentence each, never a raw error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from _runs import Plug, a_result, run, small
from rankprune.cli import main
from rankprune.lab.runs.result import RunResult
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.runs.sealed_json import NotWhole, seal, unseal
from rankprune.lab.training import Interrupted, RunError, checkpoint


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small("fashion-rpg-90", "epochs=1"), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    with pytest.raises(Interrupted):
        run(small("fashion-rpg-90", "epochs=2"), out, callback=Plug(at=5))
    return next(out.iterdir())


def test_a_seal_is_of_every_entry() -> None:
    table = {"a": 1, "b": {"c": [0.1, None, "ü"]}}
    sealed = seal(table)
    assert unseal(json.loads(json.dumps(sealed)), {}) == table
    assert seal(sealed) == sealed
    assert unseal({"b": table["b"], **sealed}, {}) == table  # in whatever order
    for wrong in ({**sealed, "a": 2}, {**sealed, "more": 0}, {**sealed, "b": {"c": [0.1, None, "u"]}}, {"a": 1, "checksum": sealed["checksum"]}):
        with pytest.raises(NotWhole, match="checksum differs"):
            unseal(wrong, {})
    for wrong, words in (([], "not a JSON object"), ({}, "lacks 'a'"), ({"a": "1"}, "a is '1'"), ({"a": True}, "a is 'True'")):
        with pytest.raises(NotWhole, match=words):
            unseal(wrong, {"a": int})


def test_a_result_is_written_with_its_checksum_and_read_without(finished: Path) -> None:
    written = json.loads((finished / "result.json").read_text())
    found = RunFolder(finished).result()
    assert found is not None
    assert written == {**found.to_dict(), "checksum": written["checksum"]}


def test_a_result_survives_the_way_through_json(finished: Path) -> None:
    result = RunFolder(finished).result()
    assert result is not None
    assert RunResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert {"top5_last", "top5_best"} == set(result.scores)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kept": -1}, "kept is '-1'"), ({"kept": 1.5}, "kept is '1.5'"), ({"kept": 10**19}, "kept is"),
        ({"accuracy_last": float("nan")}, "accuracy_last is 'nan'"), ({"sparsity": 1.5}, "sparsity is '1.5'"),
        ({"seconds": 10**400}, "seconds is"), ({"recipe": "x" * 5000}, "recipe is"), ({"seed": True}, "seed is 'True'"),
        ({"survival": {"1": "much"}}, "survival.1 is 'much'"), ({"survival": [1]}, "survival is"),
        ({"top5_last": "x"}, "scores.top5_last is 'x'"), ({f"{i}_last": 1 for i in range(100)}, "scores is"),
    ],
)  # fmt: skip
def test_a_result_holds_only_what_it_can(change: dict[str, Any], words: str) -> None:
    with pytest.raises(NotWhole, match=words):
        RunResult.from_dict({**a_result("n", 0.9, 0.5, 5, 10), **change})
    assert RunResult.from_dict(a_result("n", 0.9, 0.5, 5, 10, from_a_later_version=[1])).kept == 5


def damaged(result: dict[str, Any], how: str) -> str:
    text = json.dumps(result, indent=2)
    if how == "cut":
        return text[: len(text) // 2]
    if how == "a list":
        return "[1, 2]"
    if how == "deep":
        return "[" * 100_000
    if how == "changed":
        return text.replace('"kept": ', '"kept": 1')
    if how == "resealed without an entry":
        return json.dumps(seal({key: value for key, value in result.items() if key != "macs_sparse"}))
    return json.dumps(seal({**result, "accuracy_last": "high"}))  # of another type


@pytest.mark.parametrize("how", ["cut", "a list", "deep", "changed", "resealed without an entry", "of another type"])
def test_a_damaged_result_is_one_sentence(
    how: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(damaged(result, how))
    for command in (["compare", str(folder)], ["report", str(folder), "--out", str(tmp_path / "page.html")]):
        assert main(command) == 1
        err = capsys.readouterr().err.splitlines()[-1]
        assert "result.json is damaged (" in err
        assert "remove it and resume the run" in err
        assert "not foreseen" not in err


WRONG: dict[str, Any] = {
    "a list": [1, 2],
    "nothing": {},
    "no progress": {"model": {}, "optimizer": {}, "sparsifier": {}, "ema": None, "scaler": {}},
    "words": {"model": "x", "optimizer": "x", "sparsifier": "x", "ema": "x", "scaler": "x", "progress": "x"},
    "other weights": "model",
    "progress that is not one": "progress",
    "a word for a step": "step",
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_resealed_checkpoint_with_wrong_content_is_one_sentence(wrong: Any, stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / stopped.name)
    folder = tmp_path / stopped.name
    if isinstance(wrong, str):
        state = checkpoint.read(folder / "last.ckpt")
        if wrong == "model":
            state["model"] = {name: torch.zeros(3) for name in state["model"]}
        elif wrong == "progress":
            state["progress"] = {"speed": 3}
        else:
            state["progress"] |= {"step": "five"}
        wrong = state
    for name in ("last.ckpt", "previous.ckpt"):
        checkpoint.write(folder / name, wrong)
    with pytest.raises(RunError, match="remove the folder and start over") as caught:
        run(small("fashion-rpg-90", "epochs=2"), tmp_path, resume=True)
    assert "\n" not in str(caught.value)


def test_lines_of_metrics_that_are_not_epochs_do_not_count(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    before = RunFolder(tmp_path / "run").metrics()
    with path.open("a") as file:
        file.write('[1]\n{"loss": 3}\n{"epoch": "two"}\nnonsense\n{"epoch": 3, "lo')
    assert RunFolder(tmp_path / "run").metrics() == before
    RunFolder(tmp_path / "run").keep_metrics(5)
    assert RunFolder(tmp_path / "run").metrics() == before
