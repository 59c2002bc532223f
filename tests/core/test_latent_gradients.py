"""Methods with a latent: its gradient is there when a backward pass ends, once and for all of what was accumulated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from _nets import batch
from _ranks import assert_same, on_ranks
from rankprune.core.method import Latent

METHODS = [name for name in rp.list_methods() if issubclass(rp.method_info(name).cls, Latent)]
STEPS = 16
OPTIONS: dict[str, dict[str, Any]] = {"safe": {"lam": 0.0}}  # its pull towards z joins at the step, as weight decay does
Backward = Callable[[nn.Module, Tensor, Tensor], None]


class Recording(torch.optim.SGD):
    """SGD that remembers the norm of the gradients it was given."""

    norm = 0.0

    def step(self, closure: Any = None) -> Any:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        self.norm = float(torch.stack([grad.norm() for grad in grads]).norm())
        return super().step(closure)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 7, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(448, 10)).double()


def start(name: str, model: nn.Module) -> tuple[Recording, rp.Sparsifier]:
    optimizer = Recording(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    return optimizer, rp.attach(model, optimizer, name, sparsity=0.98, total_steps=STEPS, **OPTIONS.get(name, {}))


def once(model: nn.Module, x: Tensor, y: Tensor) -> None:
    nn.functional.cross_entropy(model(x), y).backward()


def in_two(model: nn.Module, x: Tensor, y: Tensor) -> None:
    for a, b in zip(x.chunk(2), y.chunk(2)):
        (nn.functional.cross_entropy(model(a), b) / 2).backward()


def scaled_in_two(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """With a loss scale, which is taken off by putting another tensor in the gradient's place."""
    for part, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):
        (nn.functional.cross_entropy(model(a), b) * 512).backward()
        for p in model.parameters() if part == 1 else ():
            p.grad = p.grad / 1024


def after_a_batch_that_was_thrown_away(model: nn.Module, x: Tensor, y: Tensor) -> None:
    once(model, x.flip(0) * 3, y)
    model.zero_grad(set_to_none=False)
    once(model, x, y)


def run(name: str, backward: Backward = once, to_none: bool = True, clip: float = 0.05) -> tuple[dict[str, Tensor], list[float]]:
    model = net()
    optimizer, sp = start(name, model)
    seen, used = [], []
    for step in range(1, STEPS + 1):
        backward(model, *batch(step, torch.float64))
        seen.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        used.append(optimizer.norm)
        optimizer.zero_grad(set_to_none=to_none)
    sp.finalize()
    assert used == pytest.approx([min(norm, clip) for norm in seen], rel=1e-4)
    return {f"w:{n}": p.detach().clone() for n, p in model.named_parameters()}, seen


@pytest.mark.parametrize("name", METHODS)
def test_clipping_sees_the_gradient_the_optimizer_uses(name: str) -> None:
    """`run` compares the two at each step; a clip that never holds leaves the run as it was without one."""
    free, norms = run(name, clip=1e9)
    clipped, _ = run(name)
    assert min(norms) > 0.05
    assert not all(torch.equal(free[key], clipped[key]) for key in free)


@pytest.mark.parametrize("backward", [in_two, scaled_in_two, after_a_batch_that_was_thrown_away])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_several_backward_passes_are_one_of_the_sum(name: str, to_none: bool, backward: Backward) -> None:
    whole, norms = run(name)
    found, seen = run(name, backward, to_none)
    assert seen == pytest.approx(norms, rel=1e-9)
    assert_same(found, whole)


@pytest.mark.parametrize("name", METHODS)
def test_a_gradient_given_by_hand_is_that_of_the_weight_shown(name: str) -> None:
    """Without a backward pass it is mapped at the step; one that is only copied after a pass is not mapped again."""

    def copied(model: nn.Module, x: Tensor, y: Tensor) -> None:
        once(model, x, y)
        for p in model.parameters():
            p.grad = p.grad.clone()

    def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> None:
        loss = nn.functional.cross_entropy(model(x), y)
        for p, grad in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
            p.grad = grad

    def weights(backward: Backward) -> dict[str, Tensor]:
        model = net()
        optimizer, sp = start(name, model)
        for step in range(1, STEPS + 1):
            backward(model, *batch(step, torch.float64))
            optimizer.step()
            optimizer.zero_grad()
        sp.finalize()
        return {n: p.detach() for n, p in model.named_parameters()}

    expected = weights(once)
    for backward in (copied, by_hand):
        found = weights(backward)
        assert all(torch.equal(found[key], expected[key]) for key in expected), backward.__name__


def test_a_model_that_changes_its_type_is_followed() -> None:
    model = net().float()
    optimizer, sp = start("feather", model)
    for step in range(1, STEPS + 1):
        if step == 8:
            model.double()
            for state in optimizer.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].double()
        dtype = torch.float64 if step >= 8 else torch.float32
        in_two(model, *batch(step, dtype))
        seen = float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))
        optimizer.step()
        assert optimizer.norm == pytest.approx(seen, rel=1e-5)
        optimizer.zero_grad()
    sp.finalize()


def work(rank: int, world: int) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    found: dict[str, Any] = {}
    for name in METHODS:
        for how in ("ddp", "ddp-views", "fsdp"):
            model = net() if how == "fsdp" else DistributedDataParallel(net(), gradient_as_bucket_view=how == "ddp-views")
            if how == "fsdp":
                for layer in (model[0], model[3]):
                    fully_shard(layer)
                fully_shard(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
            sp = rp.attach(model, optimizer, name, sparsity=0.98, total_steps=STEPS, **OPTIONS.get(name, {}))
            for step in range(1, STEPS + 1):
                x, y = (t[rank * 4 : rank * 4 + 4] for t in batch(step, torch.float64))
                for part in range(2):
                    apart = part == 0 and step % 2 and how != "fsdp"
                    with model.no_sync() if apart else nullcontext():
                        (nn.functional.cross_entropy(model(x[part::2]), y[part::2]) / 2).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
                optimizer.zero_grad(set_to_none=how != "ddp-views")
            found[f"{how}/{name}"] = {f"w:{layer.key}": layer.whole(layer.weight.clone()) for layer in sp.layers}
            sp.finalize()
    return found


def test_on_several_ranks_it_is_as_in_one_process(tmp_path: Any) -> None:
    """DDP with and without no_sync, into its buckets too, and FSDP2, which adds sharded gradients up: all clipped."""
    ranks = on_ranks(2, work, tmp_path)
    for name in METHODS:
        alone, _ = run(name)
        for found in ranks:
            for how in ("ddp", "ddp-views", "fsdp"):
                assert_same(found[f"{how}/{name}"], alone)
