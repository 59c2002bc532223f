"""Optimizers with a life of their own, copies, and training that went wrong or never began."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from _nets import adamw, batch, cnn, sgd, train
from rankprune.core.method import Latent
from rankprune.core.settings import settings_of

LATENT = [name for name in rp.list_methods() if issubclass(rp.method_info(name).cls, Latent)]
STEPS = 24


def start(name: str, model: nn.Module, optimizer: Any, **options: Any) -> rp.Sparsifier:
    every = {"every": 3} if "every" in settings_of(rp.method_info(name).cls) else {}
    data = {"data": [batch(100)], "loss_fn": nn.functional.cross_entropy} if "data" in rp.method_info(name).needs else {}
    return rp.attach(model, optimizer, name, sparsity=0.9, total_steps=STEPS, **{**every, **data, **options})


def loss(model: nn.Module, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    x, y = batch(step, dtype)
    return nn.functional.cross_entropy(model(x), y)


def outside(sp: rp.Sparsifier) -> int:
    """Weights that are not 0 outside the masks; a NaN is not 0."""
    return sum(int((layer.weight[~layer.mask] != 0).sum()) for layer in sp.layers)


# -- an optimizer that never steps ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rigl", "set", "snfs", "feather", "gmp"])
def test_training_with_another_optimizer_is_said_at_the_end(name: str) -> None:
    model = cnn()
    sp = start(name, model, sgd(model))
    train(model, sgd(model), 1, STEPS)
    with pytest.raises(rp.NotAtTarget, match=f"the attached optimizer took no step, so {name} made none of its"):
        sp.finalize()
    assert sp.finalize(project=True).kept == sp.groups[0].final  # asked for in so many words


def test_a_method_without_updates_may_end_at_once() -> None:
    model = cnn()
    assert start("magnitude", model, sgd(model)).finalize().kept == 201


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation with its two-step interface: climb along the gradient, then step from where it was."""

    def __init__(self, parameters: Any, radius: float, **options: Any) -> None:
        super().__init__(parameters, {"radius": radius})
        self.base_optimizer = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        for p in held:
            self.state[p]["before"] = p.detach().clone()
            p.add_(p.grad * (self.defaults["radius"] / norm))

    @torch.no_grad()
    def second_step(self) -> None:
        for p, state in self.state.items():
            p.copy_(state["before"])
        self.base_optimizer.step()


@pytest.mark.parametrize("name", ["rigl", "set", "gmp", "feather", "str", "topkast"])
def test_sam_with_two_steps_is_followed(name: str) -> None:
    """With a radius of 0 both gradients are one: the run is that of the base optimizer."""

    def run(radius: float | None) -> tuple[rp.Sparsifier, nn.Module]:
        model = cnn(dtype=torch.float64)
        options = {"lr": 0.05, "momentum": 0.9}
        optimizer: Any = sgd(model, weight_decay=0.0) if radius is None else SAM(model.parameters(), radius, **options)
        sp = start(name, model, optimizer)
        for step in range(1, STEPS + 1):
            loss(model, step, torch.float64).backward()
            if radius is not None:
                optimizer.first_step()
                optimizer.zero_grad()
                loss(model, step, torch.float64).backward()
                optimizer.second_step()
            else:
                optimizer.step()
            assert outside(sp) == 0
            optimizer.zero_grad()
        assert sp.step == STEPS
        assert sp.finalize().kept == 201
        return sp, model

    (_, plain), (_, flat), (_, sharp) = run(None), run(0.0), run(0.05)
    for model, same in ((flat, True), (sharp, False)):
        assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters())) is same


# -- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", rp.list_methods())
def test_copied_with_its_model_and_optimizer_a_sparsifier_goes_on(name: str) -> None:
    model = cnn()
    optimizer = adamw(model)
    sp = start(name, model, optimizer)
    train(model, optimizer, 1, 10)
    model_2, optimizer_2, sp_2 = copy.deepcopy((model, optimizer, sp))
    train(model, optimizer, 11, STEPS)
    assert sp_2.step == 10
    train(model_2, optimizer_2, 11, STEPS)
    assert sp.step == sp_2.step == STEPS
    assert sp.finalize().kept == sp_2.finalize().kept
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), model_2.state_dict().values()))
    assert not any(a is b for a, b in zip(model.parameters(), model_2.parameters()))


def test_a_sparsifier_is_not_pickled() -> None:
    model = cnn()
    sp = start("rigl", model, sgd(model))
    for save in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match=r"cannot be pickled: save sp\.state_dict\(\)"):
            save(sp)


# -- schedule-free ----------------------------------------------------------------------------------------------------


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD (Defazio et al. 2024): steps z, trains at y between z and their average x, shows x in `eval`."""

    def __init__(self, parameters: Any, lr: float, beta: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta, "train_mode": True, "k": 0})

    @torch.no_grad()
    def _switch(self, training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] is not training:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - group["beta"] if training else 1 - 1 / group["beta"])
                group["train_mode"] = training

    def eval(self) -> None:
        self._switch(False)

    def train(self) -> None:
        self._switch(True)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            assert group["train_mode"]
            group["k"] += 1
            share = 1 / group["k"]
            for p in (p for p in group["params"] if p.grad is not None):
                z = self.state[p].setdefault("z", p.detach().clone())
                p.lerp_(z, share).add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - share) - 1))
                z.sub_(p.grad, alpha=group["lr"])


@pytest.mark.parametrize("name", ["feather", "topkast", "str", "rigl", "gmp"])
def test_schedule_free_shows_masked_weights_in_eval(name: str) -> None:
    """And an evaluation on the way changes nothing of the training but rounding."""

    def run(looks: bool) -> tuple[nn.Module, rp.Sparsifier, ScheduleFree]:
        model = cnn(dtype=torch.float64)
        optimizer = ScheduleFree(model.parameters(), lr=0.1)
        sp = start(name, model, optimizer)
        for step in range(1, STEPS + 1):
            if step % 5 == 0 and looks:
                before = [p.detach().clone() for p in model.parameters()]
                optimizer.eval()
                assert outside(sp) == 0
                assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
                optimizer.train()
                assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(before, model.parameters()))
            loss(model, step, torch.float64).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, sp, optimizer

    (plain, _, _), (looked, sp, optimizer) = run(False), run(True)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(plain.parameters(), looked.parameters()))
    if name in LATENT:
        with pytest.raises(ValueError, match=r"ScheduleFree is in training mode: call optimizer\.eval\(\)"):
            sp.finalize()
    optimizer.eval()
    assert sp.finalize().kept == 201
    assert outside(sp) == 0


def test_schedule_free_averages_the_latents() -> None:
    """While feather cuts nothing, what `eval` shows is what schedule-free shows without it."""
    shown = []
    for method in (None, rp.methods.Feather(prune_start=1.0, prune_end=1.0)):
        model = cnn(dtype=torch.float64)
        optimizer = ScheduleFree(model.parameters(), lr=0.1)
        if method:
            rp.attach(model, optimizer, method, sparsity=0.9, total_steps=100)
        train(model, optimizer, 1, 12)
        optimizer.eval()
        shown.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*shown))


# -- 8-bit states -----------------------------------------------------------------------------------------------------


class EightBit(torch.optim.Optimizer):
    """SGD whose momentum is held as codes of 256 values, of which the 100th is 0: the layout bitsandbytes has."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in (p for p in self.param_groups[0]["params"] if p.grad is not None):
            state = self.state[p]
            if not state:
                values = torch.cat([torch.linspace(-1, 0, 101), torch.linspace(0, 1, 156)[1:]])
                state |= {"state1": torch.full(p.shape, 100, dtype=torch.uint8), "qmap1": values, "largest": torch.ones(())}
            momentum = 0.9 * state["qmap1"][state["state1"].long()] * state["largest"] + p.grad
            p.sub_(momentum, alpha=0.05)
            state["largest"] = momentum.abs().max().clamp_min(1e-12)
            nearest = torch.bucketize(momentum / state["largest"], (state["qmap1"][1:] + state["qmap1"][:-1]) / 2)
            state["state1"].copy_(nearest)


@pytest.mark.parametrize("name", ["rigl", "gmp", "granet", "topkast"])
def test_codes_of_an_8_bit_state_are_masked_in_value(name: str) -> None:
    model = cnn()
    optimizer = EightBit(model.parameters())
    sp = start(name, model, optimizer)
    for step in range(1, STEPS + 1):
        trained = [layer.state.get("trained", torch.ones_like(layer.mask)) for layer in sp.layers]  # of Top-KAST, in this step
        train(model, optimizer, step, step)
        for layer, alive in zip(sp.layers, trained):
            state = optimizer.state[layer.parameter]
            values = state["qmap1"][state["state1"].long()]
            assert values[~(alive if name == "topkast" else layer.mask)].count_nonzero() == 0, (step, layer.name)
            assert values.count_nonzero() > 0
    sp.finalize()


def test_a_state_of_torchao_is_masked_in_value() -> None:
    state_8bit = pytest.importorskip("torchao.optim.subclass_8bit")
    model = nn.Linear(64, 64, bias=False)
    optimizer = adamw(model)
    sp = rp.attach(model, optimizer, "gmp", sparsity=0.9, total_steps=9, every=1)
    moments = state_8bit.OptimState8bit.zeros((64, 64), signed=True)
    moments.copy_(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    optimizer.state[model.weight]["exp_avg"] = moments
    before = moments.dequantize()
    keep = torch.rand(64, 64, generator=torch.Generator().manual_seed(1)) < 0.5
    sp.layers[0].clear_state(keep)
    after = moments.dequantize()
    assert torch.equal(after, torch.where(keep, before, 0.0))


# -- training that went wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", rp.list_methods())
def test_weights_that_are_not_finite_are_refused_at_the_end(name: str) -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = start(name, model, optimizer)
    train(model, optimizer, 1, STEPS)
    layer = max(sp.layers, key=lambda s: s.kept())
    with torch.no_grad():
        layer.parameter[tuple(layer.mask.nonzero()[0])] = math.nan
    for project in (False, True):
        with pytest.raises(ValueError, match=rf"{layer.name} holds a weight that is NaN or infinite at step {STEPS}"):
            sp.finalize(project=project)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", LATENT)
def test_a_step_on_nan_leaves_zeros_outside_the_mask(name: str, bad: float) -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = start(name, model, optimizer)
    for step in range(1, STEPS + 1):
        loss(model, step).backward()
        if step == 14:
            sp.layers[1].parameter.grad[0] = bad
        optimizer.step()
        optimizer.zero_grad()
        assert outside(sp) == 0, step


@pytest.mark.parametrize("name", [n for n in rp.list_methods() if "data" not in rp.method_info(n).needs])
def test_a_model_that_changes_its_type_is_followed(name: str) -> None:
    """`model.to(float64)` in mid-run; the moments of the optimizer are the user's to convert."""
    model = cnn()
    optimizer = sgd(model)
    sp = start(name, model, optimizer)
    train(model, optimizer, 1, 11)
    model.to(torch.float64)
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].double()
    train(model, optimizer, 12, STEPS)
    assert model[0].weight.dtype == torch.float64
    states = [v for layer in sp.layers for v in layer.state.values() if isinstance(v, Tensor) and v.is_floating_point()]
    assert all(value.dtype == torch.float64 for value in states)
    assert sp.finalize().kept == 201
