"""The contract every registered method keeps; each test runs over all of them."""

from __future__ import annotations

import copy
import io
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import NETS, adamw, batch, cnn, sgd, train
from rankprune.core.budget import kept
from rankprune.core.form import MaskedForm
from rankprune.core.settings import settings_of

METHODS = rp.list_methods()
STEPS = 24
# What a short run needs: an update every three steps. One-shot methods have no clock of their own.
SHORT = {"every": 3}


def hyper(name: str) -> dict[str, Any]:
    return {key: value for key, value in SHORT.items() if key in settings_of(rp.method_info(name).cls)}


def start(name: str, model: nn.Module, optimizer: Any, sparsity: float = 0.9, **options: Any) -> rp.Sparsifier:
    data = [batch(100 + i, next(model.parameters()).dtype) for i in range(4)]  # for the methods that need some
    settings = {**hyper(name), "data": data, "loss_fn": nn.functional.cross_entropy, **options}
    return rp.attach(model, optimizer, name, sparsity=sparsity, total_steps=STEPS, **settings)


def check(sp: rp.Sparsifier, model: nn.Module) -> None:
    """Counts, zeros in weights, zeros in optimizer state."""
    if all(g.method.info.exact == "always" for g in sp.groups):
        assert sum(int(m.sum()) for m in sp.masks.values()) == sp.budget
    for group in sp.groups:
        for layer in group.layers:
            assert layer.weight[~layer.mask].count_nonzero() == 0, layer.name
            if type(group.form) is MaskedForm:
                for tensor in layer.optimizer_state():
                    assert tensor[~layer.mask].count_nonzero() == 0, layer.name


OPTIMIZERS = {
    "sgd": lambda m: sgd(m),
    "nesterov": lambda m: sgd(m, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 1e-3, weight_decay=1e-2),
    "adamw": lambda m: adamw(m),
    "amsgrad": lambda m: adamw(m, amsgrad=True),
    "foreach": lambda m: adamw(m, foreach=True),
    "fused": lambda m: adamw(m, fused=True),
    "fused-sgd": lambda m: sgd(m, fused=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), 1e-3, momentum=0.9),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("make", ["sgd", "adamw"])
def test_exact_at_every_step_and_at_the_end(name: str, net: str, make: str) -> None:
    model = NETS[net]()
    optimizer = OPTIMIZERS[make](model)
    sp = start(name, model, optimizer)
    keys = list(model.state_dict())
    train(model, optimizer, 1, STEPS, lambda _: check(sp, model))
    assert sp.step == STEPS
    total = sum(m.numel() for m in sp.masks.values())
    report = sp.finalize()
    assert report.kept == kept(total, 0.9) == sum(int(m.sum()) for m in sp.masks.values())
    assert report.sparsity == pytest.approx(0.9, abs=1 / total)
    assert min(layer.kept for layer in report.layers) >= 1
    assert sp.finalize() is report  # idempotent
    assert list(model.state_dict()) == keys
    assert all(isinstance(p, nn.Parameter) and p.is_leaf for p in model.parameters())
    for name_, mask in sp.masks.items():
        assert dict(model.named_parameters())[name_].detach()[~mask].count_nonzero() == 0


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("name", ["rpg", "gmp", "rigl", "set"])
def test_every_optimizer(name: str, make: str) -> None:
    model = cnn()
    optimizer = OPTIMIZERS[make](model)
    sp = start(name, model, optimizer)
    train(model, optimizer, 1, STEPS, lambda _: check(sp, model))
    sp.finalize()


# In which order weights, optimizer and sparsifier are restored, and after which steps they were saved.
RESUMES = [
    ("attach-first", (2, 3, 11, 23)),
    ("attach-middle", (3, 11)),
    ("attach-last", (3, 11)),
    pytest.param("attach-middle", (2, 23), marks=pytest.mark.long),
    pytest.param("attach-last", (2, 23), marks=pytest.mark.long),
]


@cache
def uninterrupted(name: str) -> tuple[dict[int, bytes], dict[str, torch.Tensor], list[torch.Tensor]]:
    """One run for all orders: its checkpoints by step, and the weights and masks it ends with."""
    model = cnn()
    optimizer = adamw(model)
    sp = start(name, model, optimizer)
    saved: dict[int, bytes] = {}

    def save(step: int) -> None:
        if step in (2, 3, 11, 23):
            file = io.BytesIO()
            torch.save([model.state_dict(), optimizer.state_dict(), sp.state_dict()], file)
            saved[step] = file.getvalue()

    train(model, optimizer, 1, STEPS, save)
    return saved, copy.deepcopy(model.state_dict()), [mask.clone() for mask in sp.masks.values()]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("order", "after"), RESUMES)
def test_resume_is_bit_exact(name: str, order: str, after: tuple[int, ...]) -> None:
    saved, final, masks = uninterrupted(name)
    for step in after:
        weights, moments, state = torch.load(io.BytesIO(saved[step]), weights_only=True)
        again = cnn(seed=9)
        other = adamw(again)
        if order == "attach-last":
            again.load_state_dict(weights)
            other.load_state_dict(moments)
        resumed = start(name, again, other)
        if order == "attach-first":
            resumed.load_state_dict(state)
        if order != "attach-last":
            again.load_state_dict(weights)
            other.load_state_dict(moments)
        if order != "attach-first":
            resumed.load_state_dict(state)
        assert resumed.step == step
        train(again, other, step + 1, STEPS)
        for (key, a), b in zip(final.items(), again.state_dict().values()):
            assert torch.equal(a, b), (step, key)
        assert all(torch.equal(a, b) for a, b in zip(masks, resumed.masks.values()))
        resumed.finalize()


@pytest.mark.parametrize("name", METHODS)
def test_accumulation_is_one_step(name: str) -> None:
    """Two half batches accumulated are one step: same masks as the whole batch at once, in float64."""

    def run(parts: int) -> tuple[nn.Module, rp.Sparsifier]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 10)).double()
        optimizer = sgd(model)
        options = {"rank_layers": "all"} if name == "rpg" else {}
        sp = start(name, model, optimizer, **options)
        for step in range(1, STEPS + 1):
            x, y = batch(step, torch.float64)
            for part in range(parts):
                chunk = slice(part * 8 // parts, (part + 1) * 8 // parts)
                (nn.functional.cross_entropy(model(x[chunk]), y[chunk]) / parts).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, sp

    (whole, one), (split, two) = run(1), run(2)
    assert one.step == two.step == STEPS
    assert all(torch.equal(a, b) for a, b in zip(one.masks.values(), two.masks.values()))
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(whole.parameters(), split.parameters()))


@pytest.mark.parametrize("name", METHODS)
def test_copies_and_seeds(name: str) -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = start(name, model, optimizer)
    train(model, optimizer, 1, 7)
    twin = copy.deepcopy(model)
    before = {n: p.detach().clone() for n, p in twin.named_parameters()}
    train(model, optimizer, 8, STEPS)
    assert all(torch.equal(p, before[n]) for n, p in twin.named_parameters())  # the copy has no hooks of ours
    train(twin, sgd(twin), 1, 2)
    vanilla = cnn(seed=5)
    vanilla.load_state_dict(model.state_dict())
    sp.finalize()
    assert sum(int((p != 0).sum()) for n, p in vanilla.named_parameters() if n in sp.masks) <= sp.budget

    def masks(seed: int) -> list[torch.Tensor]:
        net = cnn()
        opt = sgd(net)
        found = start(name, net, opt, seed=seed)
        train(net, opt, 1, 6)
        return [m.clone() for m in found.masks.values()]

    assert all(torch.equal(a, b) for a, b in zip(masks(1), masks(1)))
    if name in ("random", "rigl", "set"):
        assert not all(torch.equal(a, b) for a, b in zip(masks(1), masks(2)))


@pytest.mark.parametrize("name", METHODS)
def test_a_closure_is_the_same_as_a_plain_step(name: str) -> None:
    plain, closed = cnn(dtype=torch.float64), cnn(dtype=torch.float64)
    first, second = sgd(plain), sgd(closed)
    one, two = start(name, plain, first), start(name, closed, second)
    train(plain, first, 1, STEPS)
    for step in range(1, STEPS + 1):
        x, y = batch(step, torch.float64)

        def closure() -> torch.Tensor:
            second.zero_grad()
            loss = nn.functional.cross_entropy(closed(x), y)  # noqa: B023
            loss.backward()
            return loss

        assert second.step(closure) is not None
    assert one.step == two.step
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), closed.state_dict().values()))


def outside(sp: rp.Sparsifier) -> int:
    return sum(int(layer.weight[~layer.mask].count_nonzero()) for layer in sp.layers)


@pytest.mark.parametrize("name", METHODS)
def test_true_zeros_where_masks_or_weights_were_set_by_hand(name: str) -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = start(name, model, optimizer)
    train(model, optimizer, 1, 5)
    sp.set_masks({key: mask.clone().logical_and_(torch.rand(mask.shape) < 0.8) for key, mask in sp.masks.items()})
    assert outside(sp) == 0
    model.load_state_dict(cnn(seed=3).state_dict())  # an average of weights, say
    report = sp.finalize(project=True)
    assert outside(sp) == 0
    assert report.kept == kept(2008, 0.9)
    assert sum(int(layer.weight.count_nonzero()) for layer in sp.layers) <= report.kept


@pytest.mark.parametrize("name", METHODS)
def test_weights_swapped_out_and_back_change_nothing(name: str) -> None:
    """To evaluate an average of the weights, others load it and load the weights again."""

    def run(swap: bool) -> nn.Module:
        model = cnn()
        optimizer = sgd(model)
        sp = start(name, model, optimizer)
        train(model, optimizer, 1, 8)
        if swap:
            own = copy.deepcopy(model.state_dict())
            model.load_state_dict(cnn(seed=3).state_dict())
            model.load_state_dict(own)
        train(model, optimizer, 9, STEPS)
        sp.finalize()
        return model

    assert all(torch.equal(a, b) for a, b in zip(run(True).parameters(), run(False).parameters()))


@pytest.mark.parametrize("name", METHODS)
def test_an_optimizer_that_sits_out(name: str) -> None:
    """Each step of the other counts, the last one too, and the network never sees more than its masks."""
    model = cnn()
    optimizer, idle = sgd(model), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    sp = start(name, model, [optimizer, idle])
    found = []
    train(model, optimizer, 1, STEPS, lambda _: found.append(outside(sp)))
    assert found == [0] * STEPS
    assert sp.state_dict()["step"] == sp.step == STEPS
    assert sp.finalize().kept == kept(2008, 0.9)
    assert outside(sp) == 0
