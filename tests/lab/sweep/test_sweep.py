"""Sweeps and comparisons."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from _runs import Plug, model_bytes, run, small
from _signals import hear_ctrl_c
from rankprune.lab.recipes import RecipeError, load_recipe
from rankprune.lab.report.compare import NoResult, comparison, read_results
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.sweep.runner import Order
from rankprune.lab.sweep.sweep import read_sweep, run_sweep
from rankprune.lab.training import checkpoint, train


def test_a_file_is_a_product(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "recipes: [fashion-random-90]\ntask: fashion\nmethods: [dense, gmp]\nsparsities: [95, 99.5]\nseeds: [0, 1]\n"
        "overrides: [epochs=2]\nvary: {optimizer.lr: [0.1, 5e-2], clip_norm: [null]}\n"
    )
    recipes = read_sweep(path, ["data.batch_size=32"])
    assert len(recipes) == 4 * 2 * 2
    assert {recipe.name for recipe in recipes} == {
        "fashion-random-90", "fashion-dense", "fashion-gmp-95", "fashion-gmp-99.5",
    }  # fmt: skip
    assert {(r.seed, r.optimizer.lr, r.epochs, r.data.batch_size) for r in recipes} == {
        (seed, lr, 2, 32) for seed in (0, 1) for lr in (0.1, 0.05)
    }


def test_settings_named_after_a_method_are_for_that_method(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "task: fashion\nmethods: [dense, rigl, feather, gmp+ham]\nsparsities: [95]\n"
        "overrides: [method.rigl.grow=0.2, method.ham.alpha=3]\nvary: {method.rigl.every: [5, 7]}\n"
    )
    dense, first, second, feather, gmp = read_sweep(file)
    assert dense.method is None
    assert [r.method.hyper for r in (first, second)] == [{"every": 5, "grow": 0.2}, {"every": 7, "grow": 0.2}]  # type: ignore[union-attr]
    assert feather == load_recipe("fashion-feather-95")
    assert gmp.method is not None
    assert gmp.method.hyper == {"every": 5, "prune_end": 0.7, "ham": {"alpha": 3}}
    file.write_text("recipes: [fashion-feather-95]\noverrides: [method.rigl.evry=3]\n")
    with pytest.raises(RecipeError, match=r"rigl has no hyper-parameter 'evry'"):
        read_sweep(file)


def test_runs_that_an_override_makes_the_same_are_one(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("recipes: [fashion-dense, fashion-random-90]\nseeds: [0, 1, 2]\n")
    recipes = read_sweep(path, ["seed=5"])
    assert [(recipe.name, recipe.seed) for recipe in recipes] == [("fashion-dense", 5), ("fashion-random-90", 5)]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("recipe: [fashion-dense]", "'recipes'"),
        ("seeds: [0]", "no run"),
        ("task: fashion", "given together"),
        ("task: fashion\nmethods: [dense, rpg]", "rpg needs it"),
        ("recipes: [fashion-dense]\nvary: {note: [2026-01-01]}", "vary.note"),
        ("recipes: [fashion-dens]", "fashion-dense"),
        ("recipes: [fashion-dense]\nvary: {optimizer.lrr: [1]}", "'lr'"),
    ],
)
def test_a_wrong_file_is_one_sentence_before_anything_runs(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        read_sweep(path)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


# A network of the package's own, since each trial is a process that knows no other.
TINY = ("data.limit_train=64", "data.limit_test=50", "data.batch_size=32")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_sweep_goes_on_after_a_failure_and_skips_what_is_done(tmp_path: Path, jobs: int) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("recipes: [fashion-dense]\nseeds: [0, 1]\noverrides: [clip_norm=null]\nvary: {optimizer.lr: [1e20, 0.01]}\n")
    recipes = read_sweep(path, [*TINY, "epochs=2"])[1:]  # one that fails, two that do not
    callback = Plug()
    first = run_sweep(recipes, tmp_path / "runs", callback, jobs)
    assert [(outcome.finished_before, outcome.result.seed) for outcome in first.outcomes] == [(False, 0), (False, 1)]
    assert len(first.failures) == 1
    assert all("loss" in text for text in first.failures.values())
    assert [line["epoch"] for line in callback.lines] == ([1, 2, 1, 2] if jobs == 1 else [])
    again = run_sweep(recipes, tmp_path / "runs", jobs=jobs)
    assert [outcome.finished_before for outcome in again.outcomes] == [True, True]
    table = comparison(read_results([tmp_path / "runs"]))
    assert "fashion-dense (2 seeds)" in table
    accuracies = [100 * outcome.result.accuracy_last for outcome in first.outcomes]
    spread = abs(accuracies[0] - accuracies[1]) / 2**0.5  # the sample standard deviation of two
    assert f"{sum(accuracies) / 2:.2f} ± {spread:.2f} %" in table


def test_nobody_to_work_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="jobs=0"):
        run_sweep([small("fashion-dense")], tmp_path, jobs=0)


class Killer(threading.Thread):
    """Waits until a run has saved something, then kills its process, once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.killed = folder, 0

    def run(self) -> None:
        end = time.monotonic() + 300
        while time.monotonic() < end and not (self.folder / "last.ckpt").exists():
            time.sleep(0.01)
        owner = int((self.folder / ".lock").read_text())
        if not (self.folder / "result.json").exists():
            os.kill(owner, signal.SIGKILL)
            self.killed = owner


def killed_sweep(tmp_path: Path, **options: Any) -> list[str]:
    """Two trials of which one is killed -9 in its midst; both must end as undisturbed ones do."""
    overrides = [*TINY, "data.batch_size=8", "epochs=6", "method.every=4", "save.every_steps=2"]
    recipes = [load_recipe("fashion-rpg-95", [*overrides, f"seed={seed}"]) for seed in (0, 1)]
    killer, callback = Killer(RunFolder.of(recipes[0], tmp_path / "runs").path), Plug()
    killer.start()
    sweep = run_sweep(recipes, tmp_path / "runs", callback, **options)
    killer.join()
    assert killer.killed
    assert killer.killed != os.getpid()
    assert sweep.failures == {}
    for recipe, outcome in zip(recipes, sweep.outcomes):
        alone = train(recipe, tmp_path / "alone")
        assert model_bytes(outcome.folder) == model_bytes(alone.folder)
        for key in ("accuracy_last", "accuracy_best", "kept", "sparsity", "steps", "fingerprint", "training_flops"):
            assert getattr(outcome.result, key) == getattr(alone.result, key), key
        assert {file.name for file in outcome.folder.iterdir()} >= {"recipe.yaml", "environment.json", "metrics.jsonl", "result.json"}
    return callback.messages


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_process_resumes(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as many as in this process, so that the last bits agree
    messages = killed_sweep(tmp_path, jobs=jobs)
    assert "fashion-rpg-95 (seed 0) was killed (SIGKILL) and is restarted, attempt 2." in messages


@pytest.mark.long
def test_a_killed_task_resumes_on_a_ray_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    messages = killed_sweep(tmp_path, ray="local", jobs=1)
    assert [text for text in messages if "2 of 2" in text]


@pytest.mark.long
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_saves_every_trial_and_the_same_command_goes_on(jobs: int, tmp_path: Path) -> None:
    overrides = [*TINY, "data.batch_size=8", "epochs=12", "save.every_steps=2"]
    file, out = tmp_path / "sweep.yaml", tmp_path / "runs"
    file.write_text(f"recipes: [fashion-dense]\noverrides: {json.dumps(overrides)}\nseeds: [0, 1]\n")
    command = [sys.executable, "-m", "rankprune", "sweep", str(file), "--out", str(out), "--jobs", str(jobs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=hear_ctrl_c
    ) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end and not list(out.glob("*/last.ckpt")):
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the sweep and to its trials
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):  # nothing of the sweep is left
        os.killpg(process.pid, 0)
    subprocess.run(command, env=environment, timeout=300, check=True, capture_output=True)
    for recipe in (load_recipe("fashion-dense", [*overrides, f"seed={seed}"]) for seed in (0, 1)):
        assert model_bytes(RunFolder.of(recipe, out).path) == model_bytes(train(recipe, tmp_path / "alone").folder)


def test_a_trial_that_nobody_listens_to_saves_and_stops(tmp_path: Path) -> None:
    """A sweep that is itself killed -9 leaves no orphans at work, and what they did is kept."""
    recipe = load_recipe("fashion-dense", [*TINY, "data.batch_size=2", "epochs=1000"])
    command = [sys.executable, "-m", "rankprune.lab.sweep.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(Order(recipe, tmp_path).to_dict()))
        process.stdin.close()
        assert json.loads(process.stdout.readline())[0] == "begin"
        process.stdout.close()
        assert process.wait(timeout=120) == 0
    folder = RunFolder.of(recipe, tmp_path).path
    assert checkpoint.load(folder)[0]["progress"]["step"] > 0
    assert not (folder / "result.json").exists()


def test_a_comparison_says_its_delta_and_the_exact_count(tmp_path: Path) -> None:
    folder = run(small("fashion-magnitude-90", "epochs=1", "delta=0.25"), tmp_path).folder
    table = comparison(read_results([folder]))
    assert "δ=0.25" in table
    assert "138 of 1,384" in table
    assert "90.0289 %" in table
    assert len(read_results([folder, tmp_path, folder / ".." / folder.name])) == 1  # named thrice, one run
    with pytest.raises(NoResult, match="no finished run"):
        read_results([tmp_path / "nothing"])


def test_a_worker_whose_interpreter_prints_does_not_stop_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site customization may print before the worker can redirect its output; such lines are no events."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.write(1, b'hello\\n\\xff\\n7\\n')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    recipe = load_recipe("fashion-gmp-98", ["data.root=/nowhere", "data.name=cifar10"])
    found: list[Any] = []
    sweep = threading.Thread(target=lambda: found.append(run_sweep([recipe], tmp_path)), daemon=True)
    sweep.start()
    sweep.join(120)
    assert not sweep.is_alive()
    assert "There is no data folder /nowhere" in found[0].failures["fashion-gmp-98 (seed 0)"]
