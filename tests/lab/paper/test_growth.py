"""What is seen of growth: by hand on a row of weights, and on a short run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import rankprune as rp
from rankprune.lab.paper import growth as growth_of_rpg
from rankprune.lab.paper.growth import Watch, growth
from rankprune.lab.paper.index import build
from rankprune.lab.paper.measure import measurement_key
from rankprune.lab.paper.records import Records

QUEUE = Path(__file__).resolve().parents[3] / "results" / "queue.yaml"


def watched(masks: list[list[int]], grads: list[list[float]], lam: float) -> Watch:
    """Looks at updates whose masks are these; of a layer of one filter with eight weights."""
    model = nn.Sequential(nn.Conv2d(8, 1, 1, bias=False))
    method = rp.methods.RPG(lam=lam, delta=0.1, every=1)
    sp = rp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method, sparsity=0.5, total_steps=10)
    (group,), watch = sp.groups, Watch()
    for step, (mask, grad) in enumerate(zip(masks, grads), 1):
        sp.set_masks({"0.weight": torch.tensor(mask).bool().view(1, 8, 1, 1)})
        model[0].weight.grad = torch.tensor(grad).view(1, 8, 1, 1)
        group.step = step
        assert watch.reserve(group) == {}
    return watch


def test_what_is_grown_and_what_stays() -> None:
    """Two weights are grown, one of them is cut by the next update; then one is grown and stays."""
    masks = [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1, 0, 0], [1, 1, 1, 0, 0, 1, 0, 0]]
    watch = watched(masks, [[0.1] * 8] * 4, lam=0.0)
    assert (watch.grown, watch.survived) == (3, 2)


def test_without_a_rank_term_all_is_chosen_alike() -> None:
    masks = [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1, 0, 0]]
    watch = watched(masks, [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]] * 2, lam=0.0)
    assert (watch.compared, watch.alike, watch.sizes) == (2, 2, [0.0])


def test_it_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the embedded pictures, for one short epoch."""
    monkeypatch.setattr(growth_of_rpg, "CASES", (("rpg", {"method.lam": 4, "method.every": 3}),))
    monkeypatch.setattr(growth_of_rpg, "PERCENT", 90)
    found = growth(None, True, ("epochs=1", "model.name=vgg-small-half", "data.batch_size=512"))
    (case,) = found["cases"]
    assert case["grown"] > 0
    assert 0 < case["survived"] < 1
    assert 0.5 < case["alike"] < 1
    assert case["size"] > 0
    (tmp_path / "queue.yaml").write_text(QUEUE.read_text())
    about = {"run": measurement_key("growth"), "name": "growth", "seed": 0, "code": "0.1.0-a", "result": found, "environment": {"cpu": "a CPU"}}
    Records(tmp_path / "records").add(about)
    table = build("growth", tmp_path)
    assert table.rows[0][:2] == ("rpg (lam=4, every=3)", f"{case['grown']:,}")
    assert (table.done, table.planned) == (1, 1)
    assert any("embedded subset" in note for note in table.notes)
