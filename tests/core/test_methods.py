"""Facts of the single methods: hand-computed cases, closed forms, invariants."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import cnn, sgd, train
from rankprune.core.budget import layer_counts


def line(values: list[float]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """One linear layer 1 x n with given weights, and plain SGD."""
    model = nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def fix(sp: rp.Sparsifier, model: nn.Module, values: list[float], active: int) -> None:
    """The first `active` weights are on, with these values."""
    sp.set_masks({"weight": torch.tensor([[i < active for i in range(len(values))]])})
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, grad: list[float]) -> None:
    model.weight.grad = torch.tensor([grad])
    optimizer.step()


def test_magnitude_by_hand() -> None:
    model, optimizer = line([0.1, -0.5, 0.3, 0.0])
    sp = rp.attach(model, optimizer, "magnitude", sparsity=0.5, total_steps=3)
    assert sp.masks["weight"].tolist() == [[False, True, True, False]]
    assert model.weight.tolist() == [[0.0, -0.5, pytest.approx(0.3), 0.0]]


def test_global_magnitude_is_the_sort_of_the_concatenation() -> None:
    model = cnn()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    report = rp.prune(model, "magnitude", sparsity=0.95)
    names = [layer.name for layer in report.layers]
    flat = torch.cat([before[n].abs().reshape(-1) for n in names])
    threshold = flat.sort(descending=True).values[report.kept - 1]
    for name in names:
        assert torch.equal(dict(model.named_parameters())[name] != 0, before[name].abs() >= threshold)


def test_rigl_by_hand() -> None:
    """Six active of eight; at step 2 of 4 the cosine has halved grow = 0.5: int(6 * 0.25) = 1 leaves, 1 enters."""
    model, optimizer = line([0.0] * 8)
    sp = rp.attach(model, optimizer, rp.methods.RigL(every=2, update_end=4, grow=0.5), sparsity=0.25, total_steps=8)
    fix(sp, model, [0.9, 0.8, 0.7, 0.1, 0.6, 0.5, 0.0, 0.0], 6)
    step(model, optimizer, [0.0] * 8)
    before = model.weight.detach().clone()
    step(model, optimizer, [9.0, 9.0, 9.0, 0.0, 9.0, 9.0, 0.1, -0.2])
    assert sp.masks["weight"].tolist() == [[True, True, True, False, True, True, False, True]]
    expected = before.clone()
    expected[0, 3] = 0.0
    assert torch.equal(model.weight.detach(), expected)  # the update took the place of the step; grown starts at 0


def test_rigl_may_regrow_what_it_dropped_with_its_value() -> None:
    model, optimizer = line([0.0] * 4)
    sp = rp.attach(model, optimizer, rp.methods.RigL(every=1, update_end=2, grow=1.0), sparsity=0.5, total_steps=4)
    fix(sp, model, [0.9, 0.2, 0.0, 0.0], 2)
    step(model, optimizer, [0.0, 5.0, 1.0, 1.0])
    assert sp.masks["weight"].tolist() == [[True, True, False, False]]
    assert model.weight[0, 1].item() == pytest.approx(0.2)


def test_rigl_counts_never_change_and_follow_erk() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "rigl", sparsity=0.8, total_steps=40, every=4)
    shapes = [p.shape for n, p in model.named_parameters() if n in sp.masks]
    total = sum(math.prod(s) for s in shapes)
    expected = layer_counts(shapes, round(0.2 * total), "erk")
    seen = []

    def watch(_: int) -> None:
        assert [int(m.sum()) for m in sp.masks.values()] == expected
        seen.append([m.clone() for m in sp.masks.values()])

    train(model, optimizer, 1, 40, watch)
    moved = [t + 1 for t in range(1, 40) if not all(torch.equal(a, b) for a, b in zip(seen[t - 1], seen[t]))]
    assert set(moved) <= set(range(4, 30, 4))  # below update_end = 0.75 of the run
    assert len(moved) >= 5


def test_set_drops_by_sign_and_grows_at_random() -> None:
    values = [0.1, 0.2, 0.3, 0.4, -0.1, -0.2, -0.3, -0.4] + [0.0] * 8
    grown = []
    for grads in ([0.0] * 16, [7.0] * 16):
        model, optimizer = line([0.0] * 16)
        method = rp.methods.SET(every=1, update_end=2, grow=0.5)
        sp = rp.attach(model, optimizer, method, sparsity=0.5, total_steps=4, seed=3)
        fix(sp, model, values, 8)
        optimizer.param_groups[0]["lr"] = 0.0
        step(model, optimizer, grads)
        mask = sp.masks["weight"][0]
        assert mask[[2, 3, 6, 7]].all()  # int(0.5 * 4) of each sign left: the two nearest zero
        assert int(mask.sum()) == 8
        grown.append(mask.clone())
    assert torch.equal(*grown)  # whatever the gradient


@pytest.mark.parametrize("name", ["rigl", "set", "snfs", "granet", "svite", "dsr"])
def test_nothing_is_grown_at_the_last_step(name: str) -> None:
    """It would stay 0, and the network that is handed over would have fewer weights than it counts."""
    assert rp.method_info(name).cls(0.9, every=5).updates(20)[-1] < 20  # type: ignore[call-arg]


def test_set_takes_as_much_of_either_sign_however_large() -> None:
    """By magnitude over both signs all positives would leave."""
    model, optimizer = line([0.0] * 16)
    sp = rp.attach(model, optimizer, rp.methods.SET(every=1, grow=0.5), sparsity=0.5, total_steps=4)
    fix(sp, model, [0.1, 0.2, 0.3, 0.4, -1.0, -2.0, -3.0, -4.0] + [0.0] * 8, 8)
    optimizer.param_groups[0]["lr"] = 0.0
    step(model, optimizer, [0.0] * 16)
    assert sp.masks["weight"][0, [2, 3, 6, 7]].all()
    assert model.weight[0, [2, 3, 6, 7]].tolist() == pytest.approx([0.3, 0.4, -3.0, -4.0])


def test_gmp_cubic_by_the_formula() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "gmp", sparsity=0.9, total_steps=50, every=5, prune_end=30)
    total = sum(m.numel() for m in sp.masks.values())
    final = round(total * (1 - 0.9)) / total
    seen: dict[int, list[torch.Tensor]] = {}

    def watch(t: int) -> None:
        if t % 5 == 0:
            number = min(t // 5 - 1, 6)
            assert sp.budget == round(total * (final + (1 - final) * (1 - number / 6) ** 3))
        seen[t] = [m.clone() for m in sp.masks.values()]

    train(model, optimizer, 1, 50, watch)
    for t in range(2, 51):  # masks are nested
        assert all(not bool((b & ~a).any()) for a, b in zip(seen[t - 1], seen[t]))
    sp.finalize()


def test_static_keeps_the_zeros_it_finds() -> None:
    model = cnn()
    rp.prune(model, "random", sparsity=0.7, seed=4)
    zeros = {n: p.detach() == 0 for n, p in model.named_parameters()}
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, "static", total_steps=5)
    train(model, optimizer, 1, 5)
    assert sp.target == pytest.approx(0.7, abs=1e-3)
    sp.finalize()
    assert all(torch.equal(~mask, zeros[n]) for n, mask in sp.masks.items())


def test_methods_per_layer_and_what_they_leave_out() -> None:
    model = cnn()
    optimizer = sgd(model)
    rules = {"0": rp.methods.Magnitude(sparsity=0.5), "8.*": {"method": "gmp", "sparsity": 0.8, "every": 2}}
    sp = rp.attach(model, optimizer, rules, sparsity=0.9, total_steps=10)
    assert list(sp.masks) == ["0.weight", "8.weight"]
    assert sp.left_out == {"3.weight": "no method named for it"}
    train(model, optimizer, 1, 10)
    report = sp.finalize()
    assert [layer.kept for layer in report.layers] == [108, 128]
    assert "3.weight 16×8×3×3, 1,152 weights (no method named for it)" in str(report)


def test_macs_as_the_budget() -> None:
    model = cnn()
    optimizer = sgd(model)
    example = torch.zeros(1, 3, 8, 8)
    dense = rp.flops.count(cnn(), example)
    sp = rp.attach(model, optimizer, "gmp", sparsity=0.8, total_steps=20, every=2, budget="macs", example=example)
    train(model, optimizer, 1, 20)
    sp.finalize()
    sparse = rp.flops.count(model, example)
    assert sparse.sparse <= 0.2 * dense.dense
    assert sparse.sparse >= 0.2 * dense.dense - 2 * 64
    plain = cnn()
    rp.prune(plain, "magnitude", sparsity=sp.sparsity)
    assert rp.flops.count(plain, example).sparse > sparse.sparse  # as many weights cost more when MACs do not count


@pytest.mark.parametrize("name", ["gmp", "rpg", "acdc", "feather", "st3", "str", "probmask", "topkast", "powerprop", "spartan"])
def test_with_macs_as_the_budget_what_costs_more_stays_less(name: str) -> None:
    """The first convolution costs 64 a weight, the linear layer 1: at like sizes the linear keeps the larger share."""
    model = cnn()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.1)
    optimizer = sgd(model, lr=1e-4)
    options = {"every": 2} if name in ("gmp", "rpg") else {}
    example = torch.zeros(1, 3, 8, 8)
    sp = rp.attach(model, optimizer, name, sparsity=0.8, total_steps=20, budget="macs", distribution="global", example=example, **options)  # type: ignore[arg-type]
    train(model, optimizer, 1, 20)
    sp.finalize()
    dear, middle, cheap = (layer.kept() / layer.numel for layer in sp.layers)
    assert dear < middle < cheap
    assert rp.flops.count(model, example).sparse <= 0.2 * rp.flops.count(cnn(), example).dense


def test_every_method_names_its_paper_and_describes_itself() -> None:
    for name in rp.list_methods():
        info = rp.method_info(name)
        assert info.description.endswith(".")
        assert info.paper or name == "static"
        assert info.exact in ("always", "end")
    assert rp.list_methods("r*") == sorted(n for n in rp.list_methods() if n.startswith("r"))
