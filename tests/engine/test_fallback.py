"""What is left to torch: parts and wholes that it runs faster, by measured times that are given here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rankprune as rp
from rankprune.engine import compile as compiled
from rankprune.engine import fallback, timing


class Parts(nn.Module):
    """Two stretches for the kernels with a sort between them, which they do not know."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.three = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(self.one(x).relu()).sort().values
        return self.three(y * 2).sigmoid()


@pytest.fixture
def times(monkeypatch, tmp_path):
    """Replaces the clock: every comparison gets the times that a function of its turn gives."""
    seen: list[int] = []

    def install(give: Callable[[int], Sequence[float]]) -> list[int]:
        def in_turns(calls: Sequence[Callable[[], Any]], settled: object = None) -> list[float]:
            for call in calls:
                call()
            seen.append(len(calls))
            return list(give(len(seen) - 1))

        monkeypatch.setattr(fallback, "in_turns", in_turns)
        monkeypatch.setattr(compiled, "samples", lambda calls: [[seconds] * 3 for seconds in in_turns(calls)])
        monkeypatch.setenv("RANKPRUNE_CACHE", str(tmp_path))
        return seen

    return install


def check(fast: compiled.Compiled, model: nn.Module) -> None:
    for n in (1, 4):
        x = torch.randn(n, 6)
        with torch.no_grad():
            assert torch.allclose(fast(x), model(x), atol=1e-6)


@pytest.mark.parametrize(
    ("faster", "left"),
    [
        ((), set()),
        ((0,), {"aten.linear.default", "aten.relu.default"}),
        ((1,), {"aten.linear.default", "aten.mul.Tensor", "aten.sigmoid.default"}),
    ],
)
def test_segments_that_lose_are_left_to_torch(times, faster, left):
    """Segments are compared (engine, torch) in order; then the whole (torch, engine)."""
    times(lambda turn: (2.0, 1.0) if turn in faster or turn >= 2 else (1.0, 2.0))
    model = Parts().eval()
    fast = rp.compile(model, torch.randn(4, 6), threads=1)
    assert fast.islands == ("aten.sort.default",)
    assert set(fast.report.left) == left
    assert ("because it is faster there" in str(fast.report)) == bool(left)
    assert not fast.report.torch_only
    assert len(fast.program.natives) == 2 - len(faster)
    check(fast, model)


def test_the_whole_is_left_to_torch_where_the_engine_is_slower(times):
    times(lambda turn: (1.0, 1.5))
    for model in (Parts().eval(), nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()):
        fast = rp.compile(model, torch.randn(4, 6), threads=1)
        assert "torch runs the whole module: the engine took 1.50 times as long" in str(fast.report)
        assert "the engine took 1.50 times as long" in fast.plan()
        assert fast.report.engine_seconds == fast.report.torch_seconds
        check(fast, model)


def test_a_native_plan_is_saved_even_where_torch_runs_the_module_faster(times, tmp_path):
    times(lambda turn: (1.0, 1.5))
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    assert rp.compile(model, torch.randn(4, 6), threads=1).save(tmp_path / "net.plan")


def test_nothing_is_measured_against_torch_without_tuning(times):
    seen = times(lambda turn: (1.0, 9.0))
    fast = rp.compile(Parts().eval(), torch.randn(4, 6), threads=1, tune=False)
    assert seen == [2]  # the report's own
    assert not fast.report.torch_only
    assert fast.report.left == ()


def test_light_segments_between_islands_are_not_tried(times):
    class Light(Parts):
        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x).sort().values.relu() * 3
            return self.two(y.sort().values)

    times(lambda turn: (1.0, 2.0) if turn < 2 else (2.0, 1.0))
    model = Light().eval()
    fast = rp.compile(model, torch.randn(4, 6), threads=1)
    assert set(fast.report.left) == {"aten.relu.default", "aten.mul.Tensor"}
    assert len(fast.program.islands) == 1
    check(fast, model)


def test_a_segment_whose_input_was_brought_into_another_order_before(times):
    """The gather for the second segment is ready early, so that the first segment makes it."""

    class Ordered(Parts):
        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x.unflatten(1, (2, 3)).repeat(1, 1, 2)).transpose(1, 2)
            z = y.flatten(1).sort().values.unflatten(1, (8, 2))
            return self.three(self.two(torch.cat([y.reshape(-1, 2, 8), z.reshape(-1, 2, 8)], 1)))

    times(lambda turn: (1.0, 2.0) if turn < 2 else (2.0, 1.0))
    model = Ordered().eval()
    check(rp.compile(model, torch.randn(4, 6), threads=1), model)


def test_calls_in_turns_are_each_timed_after_a_first_one():
    order: list[str] = []
    least = timing.in_turns([lambda: order.append("a"), lambda: order.append("b")])
    assert order[:8] == ["a", "a", "b", "b"] * 2
    assert len(order) >= 4 * timing.ROUNDS[0]
    assert all(0 < seconds < 1 for seconds in least)


def test_long_calls_are_warmed_up_once(monkeypatch):
    monkeypatch.setattr(timing, "LONG", 0.0)
    order: list[str] = []
    seconds = timing.samples([lambda: order.append("a"), lambda: order.append("b")])
    rounds = len(seconds[0])
    assert rounds >= timing.ROUNDS[0]
    assert order == ["a", "a", "b", "b"] + ["a", "b"] * (rounds - 1)


def test_a_comparison_ends_early_only_when_it_is_settled(monkeypatch):
    monkeypatch.setattr(timing, "BUDGET", 60.0)
    rounds: list[int] = []

    def settled(seconds: list[list[float]]) -> bool:
        rounds.append(len(seconds[0]))
        return len(rounds) == 2

    seconds = timing.samples([lambda: None, lambda: None], settled)
    assert rounds == [timing.ROUNDS[0], timing.ROUNDS[0] + 1]
    assert [len(s) for s in seconds] == [timing.ROUNDS[0] + 1] * 2
    assert fallback._one_is_best([[2.0, 2.1, 2.0], [1.0, 1.1, 1.0]])
    assert not fallback._one_is_best([[2.0, 2.1, 2.0], [1.0, 1.1, 1.98]])  # one of the fast call's rounds was slow
    assert not fallback._one_is_best([[2.0, 2.1, 2.0], [1.0, 1.1, 1.0], [1.0, 1.1, 1.0]])


def test_the_best_thread_count_is_kept_and_named(times, monkeypatch):
    monkeypatch.setattr("rankprune.engine.backend.engine.default_threads", lambda: 4)
    turns = times(lambda turn: (2.0, 1.0, 0.99) if turn == 0 else (3.0, 1.0))
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU()).eval()
    fast = rp.compile(model, torch.randn(4, 6))
    assert turns == [3, 2]  # 1, 2 and 4 threads; then the whole against torch
    assert fast.threads == fast.report.threads == 2  # 4 are not 3 % faster
    assert "2 threads (measured 1: 2000.00 ms, 2: 1000.00 ms, 4: 990.00 ms)" in str(fast.report)
    assert "3.00 to 3.00 x faster than torch" in str(fast.report)
    assert all(native.engine.threads == 2 for native in fast.program.natives)
    check(fast, model)


def test_the_gain_is_the_middle_half_of_the_turns():
    assert timing.ratios([2.0, 4.0, 6.0, 8.0, 40.0], [2.0, 2.0, 2.0, 2.0, 2.0]) == (2.0, 4.0)
    assert timing.ratios([3.0], [2.0]) == (1.5, 1.5)


def test_a_noisy_machine_is_named(times, monkeypatch):
    times(lambda turn: (1.0, 1.0))
    monkeypatch.setattr(compiled, "samples", lambda calls: [[1.0, 2.0, 3.0, 4.0], [1.0] * 4])
    with pytest.warns(UserWarning, match=r"noisy: the speed-up over torch is between 1\.75 and 3\.25"):
        rp.compile(nn.Sequential(nn.Linear(6, 4)).eval(), torch.randn(4, 6), threads=1)
