"""Sweeps and comparisons."""

from __future__ import annotations

from pathlib import Path

import pytest
from _runs import SMALL, run, small

from rankprune.recipes import RecipeError
from rankprune.training.compare import NoResult, comparison, read_results
from rankprune.training.sweep import read_sweep, run_sweep


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


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("recipe: [fashion-dense]", "'recipes'"),
        ("seeds: [0]", "no run"),
        ("task: fashion", "go together"),
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


def test_a_sweep_goes_on_after_a_failure_and_skips_what_is_done(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("recipes: [fashion-dense]\nseeds: [0, 1]\nvary: {optimizer.lr: [1e20, 0.1]}\n")
    recipes = read_sweep(path, [*SMALL, "epochs=1"])
    first = run_sweep(recipes, tmp_path / "runs")
    assert [outcome.found for outcome in first.outcomes] == [False, False]
    assert len(first.failures) == 2
    assert all("loss" in text for text in first.failures.values())
    again = run_sweep(recipes, tmp_path / "runs")
    assert [outcome.found for outcome in again.outcomes] == [True, True]
    table = comparison(read_results([tmp_path / "runs"]))
    assert "fashion-dense (2 seeds)" in table
    accuracies = [100 * outcome.result["accuracy_last"] for outcome in first.outcomes]
    spread = abs(accuracies[0] - accuracies[1]) / 2**0.5  # the sample standard deviation of two
    assert f"{sum(accuracies) / 2:.2f} ± {spread:.2f} %" in table


def test_a_comparison_says_its_delta_and_the_exact_count(tmp_path: Path) -> None:
    folder = run(small("fashion-magnitude-90", "epochs=1", "delta=0.25"), tmp_path).folder
    table = comparison(read_results([folder]))
    assert "δ=0.25" in table
    assert "138 of 1,384" in table
    assert "90.0289%" in table
    with pytest.raises(NoResult, match="no finished run"):
        read_results([tmp_path / "nothing"])
