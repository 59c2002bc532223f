"""From the file to runs; and the repository's own queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from _small import add, write_queue

from rankprune.lab.paper.queue import Queue, read_queue
from rankprune.lab.paper.records import Records
from rankprune.lab.paper.runs import Run
from rankprune.lab.recipes import RecipeError

REPO = Path(__file__).resolve().parents[3]


def runs(folder: Path, text: str) -> list[Run]:
    path = write_queue(folder, text) / "queue.yaml"
    return read_queue(path, Records(folder / "records")).runs()


def test_sparsity_by_sparsity_and_each_once(tmp_path: Path) -> None:
    text = """\
budget: {fashion: [epochs=1]}
stages:
  - {name: a, task: fashion, methods: [dense, gmp, rpg], sparsities: [90, 95]}
  - {name: b, task: fashion, methods: [gmp], sparsities: [95, 98], seeds: [0, 1]}
"""
    found = [(r.method, r.percent, r.seed) for r in runs(tmp_path, text)]
    assert found == [
        ("dense", None, 0), ("gmp", 90, 0), ("rpg", 90, 0), ("gmp", 95, 0), ("rpg", 95, 0),
        ("gmp", 98, 0), ("gmp", 95, 1), ("gmp", 98, 1),
    ]  # fmt: skip


def test_vary_is_a_list_of_grids(tmp_path: Path) -> None:
    text = """\
stages:
  - name: a
    task: fashion
    methods: [rpg]
    sparsities: [95]
    vary: [{method.lam: [0]}, {method.lam: [1, 2], method.rank_reduction: [mean, sum]}]
"""
    found = [dict(run.settings) for run in runs(tmp_path, text)]
    assert found[0] == {"method.lam": 0}
    assert [(d["method.lam"], d["method.rank_reduction"]) for d in found[1:]] == [(1, "mean"), (1, "sum"), (2, "mean"), (2, "sum")]
    recipe = runs(tmp_path, text)[4].recipe()
    assert recipe.method is not None
    assert (recipe.method.hyper["lam"], recipe.method.hyper["rank_reduction"]) == (2, "sum")


LEADING = """\
stages:
  - {name: a, task: fashion, methods: [gmp, rpg, set], sparsities: [90, 95]}
  - {name: b, task: fashion, leading: {of: a, count: 2, by: [95]}, sparsities: [95], seeds: [0, 1]}
"""


def test_leaders_are_known_when_their_stage_is_done(tmp_path: Path) -> None:
    path = write_queue(tmp_path, LEADING) / "queue.yaml"
    records = Records(tmp_path / "records")
    add(records, Run("fashion", "gmp", 95.0), 0.5)
    add(records, Run("fashion", "rpg", 95.0), 0.7)
    queue = read_queue(path, records)
    assert queue.waiting == ["b waits until a is done"]
    assert queue.runs("b") == []
    add(records, Run("fashion", "set", 95.0), 0.6)
    queue = read_queue(path, records)
    assert queue.waiting == []
    assert [(r.method, r.seed) for r in queue.runs("b")] == [("rpg", 0), ("set", 0), ("rpg", 1), ("set", 1)]
    assert [(r.method, r.seed) for stage, r in queue.items if stage == "b" and isinstance(r, Run)] == [("rpg", 1), ("set", 1)]


def test_leaders_are_of_all_that_a_stage_asks_for(tmp_path: Path) -> None:
    """Also of what an earlier stage has done."""
    earlier = "  - {name: before, task: fashion, methods: [rpg], sparsities: [95]}\n"
    path = write_queue(tmp_path, LEADING.replace("stages:\n", "stages:\n" + earlier)) / "queue.yaml"
    records = Records(tmp_path / "records")
    for method, accuracy in (("gmp", 0.5), ("rpg", 0.7), ("set", 0.6)):
        add(records, Run("fashion", method, 95.0), accuracy)
    assert [r.method for r in read_queue(path, records).runs("b") if r.seed == 1] == ["rpg", "set"]


def test_a_leader_that_failed_comes_last(tmp_path: Path) -> None:
    path = write_queue(tmp_path, LEADING) / "queue.yaml"
    records = Records(tmp_path / "records")
    for method, accuracy in (("gmp", None), ("rpg", 0.2), ("set", 0.1)):
        add(records, Run("fashion", method, 95.0), accuracy)
    assert [r.method for r in read_queue(path, records).runs("b") if r.seed == 1] == ["rpg", "set"]


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"There is no queue .*queue.yaml"):
        read_queue(tmp_path / "queue.yaml", Records(tmp_path))
    with pytest.raises(RecipeError, match="there is no key 'stage'"):
        runs(tmp_path, "stages: []\nstage: 1")
    wrong = {
        "{name: a, task: fashion, methodz: [rpg]}": "there is no key 'methodz' in stages.0: did you mean 'methods'",
        "{name: a, task: fashion, methods: [dense, rpg]}": "stage a: sparsities is missing",
        "{name: a, measure: speed}": "measure=speed is none of runtime",
        "{name: a, task: fashion, sparsities: [90], leading: {of: b, count: 1, by: [90]}}": "which is no earlier stage",
    }
    for stage, sentence in wrong.items():
        with pytest.raises(RecipeError, match=sentence):
            runs(tmp_path, f"stages: [{stage}]")


def test_the_dense_run_takes_settings_that_are_not_a_methods(tmp_path: Path) -> None:
    """λ is nothing to the dense net, its weight decay is."""
    vary = "{method.lam: [0, 1], optimizer.weight_decay: [0.1]}"
    found = runs(tmp_path, f"stages: [{{name: a, task: fashion, methods: [dense], vary: [{vary}]}}]")
    assert [run.settings for run in found] == [(("optimizer.weight_decay", 0.1),)]


@pytest.fixture(scope="module")
def ours() -> Queue:
    return read_queue(REPO / "results" / "queue.yaml", Records(REPO / "no" / "records"))


def test_our_queue_is_in_the_order_of_value(ours: Queue) -> None:
    stages = list(dict.fromkeys(stage for stage, _ in ours.items))
    regime = [stage for stage in stages if stage.startswith(("long-", "half-"))]
    assert stages[: len(regime)] == regime  # the paper's regime first, then what four epochs say
    order = ["long-tuning", "half-rank", "half-seeds", "half-control", "long-quarter", "long-rank", "long-weights"]
    assert [stage for stage in regime if stage in order] == order
    stages = stages[len(regime) :]
    # Leaders come when their stage is done.
    assert stages[:5] == ["floor-of-the-first", "table-1", "lambda", "unclipped", "floor-of-others"]
    assert stages[5:8] == ["with-floor", "extras-of-the-first", "first-seeds"]
    assert stages[8:13] == ["grace", "grace-lambda", "lambda-seeds", "maskrcnn", "extras-without-floor"]
    assert stages[13:17] == ["table-2", "rank", "scratch", "deit"]
    runs = {(r.method, r.percent) for r in ours.runs("table-1")}
    methods = ("pbw", "mlprune", "probmask", "acdc", "rpg", "gmp", "rigl", "granet", "feather")
    assert runs == {("dense", None), *((m, s) for m in methods for s in (99, 99.5, 99.9))}
    lam = [dict(r.settings) for r in ours.runs("lambda")]
    for kind in ({}, {"method.rank_signal": "noise"}, {"method.rank_reduction": "sum"}):
        assert all({"method.lam": value, **kind, "clip_norm": None} in lam for value in (0.5, 1, 2, 4, 8))
    assert {"method.lam": 0, "clip_norm": None} in lam


def test_every_run_of_our_queue_has_a_recipe(ours: Queue) -> None:
    tasks = {r.task for r in ours.runs() if not r.known()}
    assert tasks == set()
