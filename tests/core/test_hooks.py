"""How the hooks behave: each test is a line of the design."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import rankprune as rp
from _nets import adamw, batch, cnn, sgd, train, vit
from rankprune.core.clock import Clock
from rankprune.core.method import Extra


def attach(model: nn.Module, optimizer: Any, method: str = "rigl", **options: Any) -> rp.Sparsifier:
    settings = {"sparsity": 0.9, "total_steps": 24, "every": 4, **options}
    return rp.attach(model, optimizer, method, **settings)


def zeros_hold(sp: rp.Sparsifier) -> None:
    for layer in sp.layers:
        for tensor in (layer.weight, *layer.optimizer_state()):
            assert tensor[~layer.mask].count_nonzero() == 0, layer.name


# -- gradients --------------------------------------------------------------------------------------------------------


def test_clipping_sees_the_sparse_gradient_but_updates_see_the_dense_one() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = attach(model, optimizer)
    dense_at = []
    for step in range(1, 13):
        x, y = batch(step)
        nn.functional.cross_entropy(model(x), y).backward()
        outside = max(float(s.parameter.grad[~s.mask].abs().max()) for s in sp.layers)
        if outside > 0:
            dense_at.append(step)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        zeros_hold(sp)
        assert all(p.grad is not None for p in model.parameters())  # put back after a replaced step
        optimizer.zero_grad()
    assert dense_at == [4, 8, 12]


def test_gradients_given_by_hand_or_changed_on_the_way_are_masked() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = attach(model, optimizer)
    for step in range(1, 4):
        x, y = batch(step)
        nn.functional.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            parameter.grad.add_(torch.randn_like(parameter))  # noise, as differential privacy adds
        optimizer.step()
        zeros_hold(sp)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = sp.optimizers[0]
    sp._hooks.clock.steps = 4
    optimizer.step()
    zeros_hold(sp)


def test_a_nan_at_a_dead_weight_does_no_harm() -> None:
    model = cnn()
    optimizer = adamw(model)
    sp = attach(model, optimizer)
    layer = sp.layers[0]
    train(model, optimizer, 1, 1)
    for _ in range(50):  # new gradients may come to lie where old ones were
        sp._hooks.clock.steps = 1
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        layer.parameter.grad[~layer.mask] = float("nan")
        optimizer.step()
        zeros_hold(sp)
    assert all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("method", ["rigl", "gmp", "rpg"])
def test_an_update_that_meets_nan_waits(method: str, caplog: pytest.LogCaptureFixture) -> None:
    model = cnn()
    optimizer = sgd(model, lr=0.0)
    sp = attach(model, optimizer, method)
    train(model, optimizer, 1, 7)
    before = [m.clone() for m in sp.masks.values()]
    kept = sp.budget
    with caplog.at_level(logging.WARNING, logger="rankprune"):
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            sp.layers[1].parameter.grad[0] = float("inf")
            optimizer.param_groups[0]["momentum"] = 0.0
            saved = copy.deepcopy(model.state_dict())
            optimizer.step()
            model.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(before, sp.masks.values()))
    assert sp.budget == kept
    assert [r.getMessage() for r in caplog.records] == [
        "step 8: a weight or gradient is not finite, the mask update waits"
    ]
    assert sp.state_dict()["groups"][0]["retry"] is True
    optimizer.state.clear()
    optimizer.zero_grad()
    train(model, optimizer, 10, 10)
    assert not all(torch.equal(a, b) for a, b in zip(before, sp.masks.values()))
    assert sp.state_dict()["groups"][0]["retry"] is False


@pytest.mark.parametrize("method", ["woodfisher", "mlprune", "rpg"])
def test_a_step_within_autocast_updates_in_the_precision_of_the_weights(method: str) -> None:
    def masks(within: bool) -> list[Tensor]:
        model = cnn()
        optimizer = sgd(model, lr=0.0)
        options = {"data": [batch(i) for i in range(4)], "loss_fn": nn.functional.cross_entropy}
        sp = attach(model, optimizer, method, **options) if method == "rpg" else rp.attach(
            model, optimizer, method, sparsity=0.9, total_steps=24, **options)  # fmt: skip
        for step in range(1, 25):
            x, y = batch(step)
            nn.functional.cross_entropy(model(x), y).backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=within):
                optimizer.step()
            optimizer.zero_grad()
        sp.finalize()
        return list(sp.masks.values())

    assert all(torch.equal(a, b) for a, b in zip(masks(True), masks(False)))


def test_some_gradients_are_none() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(12, 10), nn.Linear(12, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x.flatten(1)[:, :12])

    model = Half()
    optimizer = sgd(model)
    sp = attach(model, optimizer, "rpg", rank_layers="all", sparsity=0.5)
    train(model, optimizer, 1, 24)
    sp.finalize()


# -- the clock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_the_scaler_skips_does_not_count(fused: bool) -> None:
    model = cnn()
    optimizer = adamw(model, fused=fused)
    sp = attach(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    moved, last = [], [m.clone() for m in sp.masks.values()]
    taken = 0
    for step in range(1, 15):
        x, y = batch(step)
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        skip = step in (2, 3, 6, 7)
        if skip:
            model[0].weight.grad[0, 0, 0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        taken += not skip
        if not all(torch.equal(a, b) for a, b in zip(last, sp.masks.values())):
            moved.append(taken)
            last = [m.clone() for m in sp.masks.values()]
        zeros_hold(sp)
    assert sp.step == taken == 10
    assert moved == [4, 8]


@pytest.mark.parametrize("method", ["topkast", "rigl+ham"])
def test_a_step_a_fused_optimizer_skips_changes_no_weight(method: str) -> None:
    """What a method or an extra does to the weight after a step is not done after none."""
    model = cnn()
    optimizer = adamw(model, fused=True)
    sp = rp.attach(model, optimizer, method, sparsity=0.9, total_steps=24, **({"every": 4} if "+" in method else {}))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(1, 7):
        before = [p.detach().clone() for s in sp.layers for p in (s.weight, s.value)]
        x, y = batch(step)
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if step in (2, 4):
            sp.layers[0].parameter.grad[0] = float("nan" if step == 2 else "inf")
        scaler.step(optimizer)
        scaler.update(1024.0)
        optimizer.zero_grad()
        after = [p.detach() for s in sp.layers for p in (s.weight, s.value)]
        assert all(torch.equal(a, b) for a, b in zip(before, after)) == (step in (2, 4))
    assert sp.step == 4


@pytest.mark.parametrize("method", ["rigl", "feather"])
def test_an_optimizer_that_calls_its_parents_step_counts_once(method: str) -> None:
    """torch runs step hooks for each class of a `super().step()` whose `step` it has wrapped."""

    class Logging(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    def run(kind: type[torch.optim.SGD]) -> tuple[rp.Sparsifier, nn.Module]:
        model = cnn()
        optimizer = kind(model.parameters(), lr=0.05, momentum=0.9)
        sp = rp.attach(model, optimizer, method, sparsity=0.9, total_steps=24, **({"every": 4} if method == "rigl" else {}))
        train(model, optimizer, 1, 12)
        x, y = batch(13)
        loss = optimizer.step(lambda: backward(model, x, y))
        assert loss is not None
        return sp, model

    def backward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    (plain, first), (logged, second) = run(torch.optim.SGD), run(Logging)
    assert plain.step == logged.step == 13
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


def test_the_clock_holds_no_flag_a_step() -> None:
    """After the last update nobody asks for the time: what may have been skipped is one number on the device."""
    clock = Clock()
    for flag in (0.0, 1.0, 0.0, 2.0, 0.0):  # GradScaler sums over devices
        clock.tick(torch.tensor(flag))
    clock.tick(None)
    held = [value for value in vars(clock).values() if isinstance(value, (Tensor, list))]
    assert sum(len(value) if isinstance(value, list) else 1 for value in held) == 1
    assert not clock.due([3])
    assert clock.steps == 4


class Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(func) or "nonzero" in str(func) or "is_nonzero" in str(func):
            self.looks += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["rigl", "rpg", "gmp", "set", "magnitude"])
@pytest.mark.parametrize("scaled", [False, True])
def test_an_ordinary_step_never_looks_at_the_device(method: str, scaled: bool) -> None:
    model = cnn()
    optimizer = sgd(model, fused=True)
    sp = rp.attach(
        model, optimizer, method, sparsity=0.9, total_steps=24, **({} if method == "magnitude" else {"every": 8})
    )
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for step in range(1, 15):
        x, y = batch(step)
        watch = Watch()
        with watch:
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        with watch:
            if scaled:
                optimizer.found_inf, optimizer.grad_scale = torch.zeros(()), None
            optimizer.step()
            if scaled:
                del optimizer.found_inf, optimizer.grad_scale
        scaler.update()
        optimizer.zero_grad()
        if step not in (8, 16) and step > 1:
            assert watch.looks == 0, step
    assert sp.step == 14


def test_two_optimizers_are_one_step() -> None:
    model = vit()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    muon = torch.optim.Muon(matrices, lr=0.01)
    adam = torch.optim.AdamW(rest, lr=1e-3)
    sp = attach(model, [muon, adam], "rpg", rank_layers="all")
    assert sp._hooks._keeps_zeros == {muon: False, adam: True}
    for step in range(1, 25):
        x, y = batch(step)
        nn.functional.cross_entropy(model(x), y).backward()
        muon.step()
        adam.step()
        model.zero_grad()
        assert sp.step == step
        zeros_hold(sp)
        assert sum(int(m.sum()) for m in sp.masks.values()) == sp.budget
    sp.finalize()


@pytest.mark.parametrize("method", ["rigl", "rpg"])
def test_growth_sees_dense_gradients_where_an_optimizer_sits_out(method: str) -> None:
    alone, model = cnn(), cnn()
    first, optimizer = sgd(alone), sgd(model)
    idle = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    one, two = attach(alone, first, method), attach(model, [optimizer, idle], method)
    train(alone, first, 1, 24)
    train(model, optimizer, 1, 24)
    one.finalize()
    two.finalize()
    assert all(torch.equal(a, b) for a, b in zip(alone.parameters(), model.parameters()))


@pytest.mark.parametrize("skip", [1, 2, 5, 7, 8])
@pytest.mark.parametrize("which", [0, 1])
def test_two_optimizers_stay_in_step_when_a_scaler_skips_one(skip: int, which: int) -> None:
    class Watched(rp.methods.RigL):
        def update(self, group: Any) -> None:
            dense.append([bool(layer.grad[~layer.mask].count_nonzero()) for layer in group.layers])
            super().update(group)

    dense: list[list[bool]] = []
    model = cnn()
    both = [torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for part in (model[:5], model[5:])]
    sp = rp.attach(model, both, Watched(every=4, update_end=1.0), sparsity=0.9, total_steps=24)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(1, 24):
        x, y = batch(step)
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if step == skip:
            sp.layers[2 * which].parameter.grad[0] = float("inf")
        for optimizer in both:
            scaler.step(optimizer)
        scaler.update(4.0)
        model.zero_grad()
        if step > skip + 1:
            assert sp.step == step  # and none is under way
    assert dense[1:] == [[True] * 3] * (len(dense) - 1)


# -- optimizers -------------------------------------------------------------------------------------------------------


def test_which_optimizers_keep_zeros() -> None:
    from rankprune.core.optimizers import keeps_zeros

    p = [nn.Parameter(torch.randn(4, 4))]
    for good in (torch.optim.SGD(p, 0.0, 0.9, weight_decay=1e-2), torch.optim.Adam(p), torch.optim.AdamW(p, amsgrad=True),
                 torch.optim.NAdam(p), torch.optim.RMSprop(p), torch.optim.Adagrad(p)):  # fmt: skip
        assert keeps_zeros(good), good
    assert not keeps_zeros(torch.optim.Muon(p))

    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            with torch.no_grad():
                for group in self.param_groups:
                    for q in group["params"]:
                        q.add_(1e-3)

    assert not keeps_zeros(Odd(p, 0.1))


def test_wrapped_optimizers_are_unwrapped_and_lbfgs_refused() -> None:
    model = cnn()

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    inner = sgd(model)
    assert attach(model, Wrapper(inner)).optimizers == [inner]
    with pytest.raises(ValueError, match="LBFGS"):
        attach(cnn(), torch.optim.LBFGS(cnn().parameters()))


def test_loading_an_optimizer_leaves_its_checkpoint_alone() -> None:
    model = cnn()
    optimizer = adamw(model)
    train(model, optimizer, 1, 3)
    checkpoint = optimizer.state_dict()
    checkpoint = {"param_groups": checkpoint["param_groups"], "state": copy.deepcopy(checkpoint["state"])}
    kept = copy.deepcopy(checkpoint)
    sp = attach(model, optimizer)
    optimizer.load_state_dict(checkpoint)
    train(model, optimizer, 4, 9)
    zeros_hold(sp)
    for index, state in checkpoint["state"].items():
        for key in ("exp_avg", "exp_avg_sq"):
            if state[key].ndim > 1:
                assert torch.equal(state[key], kept["state"][index][key])


def test_momentum_from_before_attach_does_not_revive_weights() -> None:
    model = cnn()
    optimizer = sgd(model)
    train(model, optimizer, 1, 3)
    sp = attach(model, optimizer)
    train(model, optimizer, 4, 4)
    zeros_hold(sp)


def test_weights_loaded_in_mid_run_are_masked_at_the_next_step() -> None:
    model = cnn()
    optimizer = sgd(model)
    sp = attach(model, optimizer)
    train(model, optimizer, 1, 6)
    model.load_state_dict(cnn(seed=3).state_dict())
    train(model, optimizer, 7, 7)
    zeros_hold(sp)
    assert sum(int(m.sum()) for m in sp.masks.values()) == sp.budget


# -- models -----------------------------------------------------------------------------------------------------------


def test_compile_does_not_recompile_as_masks_move() -> None:
    model = cnn()
    frames = []

    def backend(graph: Any, inputs: Any) -> Any:
        frames.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    optimizer = sgd(model)
    sp = attach(compiled, optimizer)
    assert set(sp.masks) <= set(dict(compiled.named_parameters()))
    train(compiled, optimizer, 1, 12)
    zeros_hold(sp)
    assert len(frames) == 1


def test_tied_frozen_dense_transposed_and_attention_weights() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 1)
            self.up = nn.ConvTranspose2d(4, 6, 2)
            self.a = nn.Linear(6, 6)
            self.b = nn.Linear(6, 6)
            self.b.weight = self.a.weight
            self.attention = nn.MultiheadAttention(6, 2, kdim=5, vdim=4)
            self.fused = nn.MultiheadAttention(6, 2)
            self.frozen = nn.Linear(6, 3)
            self.frozen.requires_grad_(False)
            self.norm = nn.LayerNorm(6)

    model = Net()
    optimizer = sgd(model)
    sp = attach(model, optimizer, "rpg", sparsity=0.5, dense=["stem", nn.LayerNorm])
    assert list(sp.masks) == [
        "up.weight", "a.weight", "attention.q_proj_weight", "attention.k_proj_weight", "attention.v_proj_weight",
        "attention.out_proj.weight", "fused.in_proj_weight", "fused.out_proj.weight",
    ]  # fmt: skip
    assert sp.left_out == {"stem.weight": "kept dense", "frozen.weight": "frozen"}
    assert "frozen.weight 3×6, 18 weights (frozen)" in str(sp.summary())
    assert next(s for s in sp.layers if s.name == "up.weight").transposed
    assert set(sp.masks) <= set(dict(model.named_parameters()))
    for step in range(1, 25):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
        optimizer.step()
    sp.finalize()


def test_a_tied_weight_is_dense_where_any_of_its_modules_is() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, 6)
            self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight
            self.head = nn.Linear(6, 10)
            self.head.weight = self.words.weight

    for dense, found in [
        ([], ["words.weight", "a.weight", "c.weight"]),
        ([nn.Embedding], ["a.weight", "c.weight"]),
        (["b", "head.weight"], ["c.weight"]),
    ]:
        model = Net()
        sp = attach(model, sgd(model), dense=dense, sparsity=0.5)
        assert list(sp.masks) == found
        assert not set(found) & set(sp.left_out)


def test_what_cannot_be_pruned_is_left_out_and_said() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    model = nn.Sequential(normed, nn.Linear(8, 8), nn.Linear(8, 0))
    optimizer = sgd(model)
    sp = attach(model, optimizer, "gmp", sparsity=0.5)
    assert list(sp.masks) == ["1.weight"]
    assert sp.left_out == {
        "0.weight": "no parameter of its own: a parametrization or a hook computes it",
        "2.weight": "empty",
    }
    for _ in range(24):
        model[:2](torch.ones(1, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sp.finalize().kept == 32


def test_a_copy_on_another_device_leaves_the_masks_where_they_are() -> None:
    model = cnn()
    sp = rp.attach(model, sgd(model), "magnitude", sparsity=0.9, total_steps=5)
    sp.apply_to(cnn().to("meta"))
    assert {mask.device.type for mask in sp.masks.values()} == {"cpu"}


def test_random_numbers_do_not_depend_on_the_default_device() -> None:
    model = cnn()
    layer = rp.attach(model, sgd(model), "rigl", sparsity=0.9, total_steps=100).layers[0]
    uniform, normal = layer.random(), layer.normal("walk")
    with torch.device("meta"):
        assert torch.equal(layer.random(), uniform)
        assert torch.equal(layer.normal("walk"), normal)


def test_a_resumed_run_has_the_seed_of_its_checkpoint() -> None:
    ends = []
    for seed in (1, 2):
        model = cnn()
        optimizer = sgd(model)
        sp = rp.attach(model, optimizer, "set", sparsity=0.9, total_steps=20, every=2, seed=seed)
        if not ends:
            state = [copy.deepcopy(x.state_dict()) for x in (model, optimizer, sp)]
        for x, saved in zip((model, optimizer, sp), state):
            x.load_state_dict(saved)
        train(model, optimizer, 1, 20)
        ends.append(sp.masks)
    assert all(torch.equal(mask, ends[1][name]) for name, mask in ends[0].items())


def test_ema_copies() -> None:
    model = cnn()
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = sgd(model)
    sp = attach(model, optimizer)
    train(model, optimizer, 1, 9, lambda _: ema.update_parameters(model))
    assert any(p.detach()[~sp.masks[n.removeprefix("module.")]].count_nonzero() for n, p in ema.named_parameters()
               if n.removeprefix("module.") in sp.masks)  # fmt: skip
    sp.apply_to(ema)
    sp.apply_to(torch.optim.swa_utils.AveragedModel(ema))  # wrapped twice, as an average of DDP's model is
    for name, parameter in ema.module.named_parameters():
        if name in sp.masks:
            assert parameter.detach()[~sp.masks[name]].count_nonzero() == 0
    with pytest.raises(ValueError, match="not the same"):
        sp.apply_to(vit())


def test_channels_last_and_half_precision() -> None:
    model = cnn().to(memory_format=torch.channels_last).to(torch.bfloat16)
    optimizer = sgd(model)
    sp = attach(model, optimizer, "rpg")
    train(model, optimizer, 1, 24)
    zeros_hold(sp)
    sp.finalize()


@pytest.mark.parametrize("method", ["powerprop", "feather", "topkast"])
def test_a_step_that_fails_in_the_middle_loses_no_latent(method: str) -> None:
    """An interrupt, or too little memory: the optimizer raises when the latent has taken the weight's place."""
    model = cnn()
    optimizer = sgd(model)
    sp = rp.attach(model, optimizer, method, sparsity=0.9, total_steps=24)
    train(model, optimizer, 1, 15)
    before = [tensor.clone() for layer in sp.layers for tensor in (layer.weight, layer.value)]

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    def interrupted() -> None:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer._init_group = fails
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        del optimizer._init_group

    interrupted()
    sp.detach()
    assert all(torch.equal(a, layer.weight) for a, layer in zip(before[::2], sp.layers))
    state = sp.state_dict()
    sp = rp.attach(model, optimizer, method, sparsity=0.9, total_steps=24)
    sp.load_state_dict(state)
    interrupted()
    assert sp.state_dict()["step"] == 15
    after = [tensor for layer in sp.layers for tensor in (layer.weight, layer.value)]
    assert all(torch.equal(a, b) for a, b in zip(before, after))
    interrupted()
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()  # as it is: the next step finds the latents as they were
    assert all(torch.equal(a, b) for a, b in zip(before[1::2], after[1::2]))
    interrupted()
    sp.finalize()
    assert all(torch.equal(a, layer.weight) for a, layer in zip(before[::2], sp.layers))


def test_extras_are_called_around_every_step_that_is_taken() -> None:
    class Count(Extra):
        calls: list[tuple[str, str]]

        def __init__(self) -> None:
            self.calls = []

        def before_step(self, layer: Any) -> None:
            self.calls.append(("before", layer.name))

        def after_step(self, layer: Any) -> None:
            self.calls.append(("after", layer.name))

        def reserve(self, group: Any) -> dict[Any, Tensor]:
            masks = {layer: torch.zeros_like(layer.mask) for layer in group.layers}
            for mask in masks.values():
                mask.view(-1)[:2] = True  # the first two, whatever their score
            return masks

    extra = Count()
    model = cnn()
    optimizer = sgd(model)
    sp = attach(model, optimizer, "rpg", extras=[extra])
    train(model, optimizer, 1, 9)
    assert len(extra.calls) == 2 * 3 * 7  # steps 4 and 8 are replaced
    train(model, optimizer, 10, 24)
    assert all(bool(m.view(-1)[:2].all()) for m in sp.masks.values())
    sp.finalize()


class SoftThreshold(rp.Latent):
    """A latent method for the test: magnitude mask, shrunk by the largest weight cut."""

    def effective(self, layer: Any) -> Tensor:
        latent = layer.state["latent"]
        cut = latent.abs().masked_fill(layer.mask, 0).max()
        return torch.where(layer.mask, latent.sign() * (latent.abs() - cut), 0.0)


def test_a_latent_method_keeps_the_weight_sparse_and_trains_the_latent() -> None:
    rp.register("test-soft", exact="always")(SoftThreshold)
    try:
        model = cnn()
        optimizer = sgd(model)
        sp = rp.attach(model, optimizer, SoftThreshold(sparsity=0.8), total_steps=12)
        revived = False
        seen = [m.clone() for m in sp.masks.values()]
        for step in range(1, 13):
            x, y = batch(step)
            nn.functional.cross_entropy(model(x), y).backward()
            before = [s.state["latent"].clone() for s in sp.layers]
            grads = [s.parameter.grad.clone() for s in sp.layers]
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                for layer, latent, grad in zip(sp.layers, before, grads):  # plain SGD on the latent, decay included
                    assert torch.allclose(layer.state["latent"], latent - 0.05 * (grad + 5e-4 * latent), atol=1e-7)
            for layer in sp.layers:
                assert layer.weight[~layer.mask].count_nonzero() == 0
            assert sum(int(m.sum()) for m in sp.masks.values()) == sp.budget
            revived |= step > 1 and any(bool((b & ~a).any()) for a, b in zip(seen, sp.masks.values()))
            seen = [m.clone() for m in sp.masks.values()]
        assert revived  # what was cut may return: its latent kept training
        sp.finalize()
    finally:
        from rankprune.core import registry as _registry

        del _registry._METHODS["test-soft"]
