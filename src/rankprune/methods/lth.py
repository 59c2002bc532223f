"""Lottery tickets: iterative magnitude pruning with rewinding (Frankle & Carbin 2019, Frankle et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from rankprune.core.form import GradientMask
from rankprune.core.keywords import of_plan, plan_keywords
from rankprune.core.layer import canonical
from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.plan import Plan, Run
from rankprune.core.schedules import Step, as_step, check_count, cut_share, evenly_spaced, left_after, rounds_at_rate
from rankprune.core.shards import local, sharded


@dataclass(frozen=True, kw_only=True)
class Rewinding(Plan):
    """The step to rewind to, if it is not the start, and prunings at even distances after it.

    Args:
        rate: The share of what is left that one pruning cuts.
        rounds: How many prunings, each of an equal share; None: as many as `rate` needs.
        rewind: The step k to rewind to, or a share of one training.
    """

    rate: float = 0.2
    rounds: int | None = None
    rewind: Step = 0.05

    def steps(self, run: Run) -> Sequence[int]:
        point, cuts = self.rewind_point(run), self._cuts(run)
        last = point + (run.total_steps - point) * cuts // (cuts + 1)
        if last <= point:
            raise ValueError(f"lth cannot rewind to step {point} within total_steps={run.total_steps}: lower rewind")
        return [point, *evenly_spaced(point, last, cuts)] if point else evenly_spaced(0, last, cuts)

    def budget(self, done: int, run: Run) -> int:
        skip = 1 if self.rewind_point(run) else 0
        cuts, done = len(run.steps) - skip, done - skip
        if done <= 0:
            return run.total
        if self.rounds is not None or done == cuts:
            return left_after(run.total, run.final, done, cuts)
        return max(run.final, cut_share(run.total, self.rate, done))

    def _cuts(self, run: Run) -> int:
        """How many prunings there are."""
        if self.rounds is not None:
            check_count(self.rounds, "rounds", "rounds")
            return self.rounds
        assert run.sparsity is not None
        return rounds_at_rate(run.sparsity, self.rate)

    def rewind_point(self, run: Run) -> int:
        """The step k to rewind to. With a share r of one training of S steps: k = r S and S + cuts (S - k) = total.

        Args:
            run: The training.
        """
        if isinstance(self.rewind, int):
            return as_step(self.rewind, run.total_steps, "rewind")
        share = as_step(self.rewind, 10**6, "rewind") / 10**6
        return int(share * run.total_steps / (1 + self._cuts(run) * (1 - share)))


@plan_keywords(kw_only=True)
class RewindingKeywords:
    """The keywords of `Rewinding`."""

    rate: float = of_plan()
    rounds: int | None = of_plan()
    rewind: Step = of_plan()


@register(
    "lth", paper="Frankle & Carbin 2019, arXiv:1803.03635; Frankle et al. 2020, arXiv:1912.05671", family="magnitude",
)  # fmt: skip
@dataclass(kw_only=True)
class LTH(Score, RewindingKeywords):
    """Train, prune by global magnitude, rewind what is left to its early values, and train again, round after round.

    Cost: with `rounds` prunings total_steps holds rounds + 1 trainings, so each has about 1/(rounds + 1) of it (at 90 %
    with the default 20 % a round: 11 prunings, a twelfth each). Each training begins at the state of step k, the
    `rewind` point (a step, or a share of one training): all weights, other parameters and buffers go back to it and
    the optimizer's state starts afresh. The learning-rate schedule is yours: let it run through once per training, by
    starting it anew at k after each step of `LTH(...).updates(total_steps)`. The last round cuts what the target asks.
    """

    plan: Rewinding = Rewinding()

    def rewind_point(self, total_steps: int) -> int:
        """The step that each training but the first begins at.

        Args:
            total_steps: Optimizer steps of the training.
        """
        return self.plan.rewind_point(self.run(total_steps))

    def start(self, group: Group) -> None:
        if not self.rewind_point(group.total_steps):
            _remember(group)

    def update(self, group: Group) -> None:
        if self.rewind_point(group.total_steps) and group.plan.done(group.step) == 1:
            _remember(group)
            return
        super().update(group)
        _rewind(group)

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs()


def _others(group: Group) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers of the model, except the prunable weights of this group."""
    assert group.model is not None
    pruned = {id(layer.parameter) for layer in group.layers}
    yield from ((f"parameter/{canonical(n)}", p) for n, p in group.model.named_parameters() if id(p) not in pruned)
    yield from ((f"buffer/{canonical(n)}", b) for n, b in group.model.named_buffers())


def _remember(group: Group) -> None:
    for layer in group.layers:
        layer.state["rewind"] = layer.weight.clone()
    for name, tensor in _others(group):
        group.state[name] = sharded(tensor.detach(), name).gather(local(tensor.detach())).clone()


def _rewind(group: Group) -> None:
    """Restore everything from the rewind point; the core then applies the new masks."""
    for layer in group.layers:
        layer.weight.copy_(layer.state["rewind"])
    for name, tensor in _others(group):
        if not _masked_elsewhere(tensor):
            value = group.state[name].to(tensor.device)
            local(tensor.detach()).copy_(sharded(tensor.detach(), name).scatter(value))
    for optimizer in group.optimizers:
        for parameter in [p for g in optimizer.param_groups for p in g["params"]]:
            if not _masked_elsewhere(parameter) or any(parameter is layer.parameter for layer in group.layers):
                optimizer.state.pop(parameter, None)


def _masked_elsewhere(tensor: Tensor) -> bool:
    """Whether this parameter is masked: by another method, if it is not in this group."""
    hooks = tensor._post_accumulate_grad_hooks if isinstance(tensor, nn.Parameter) else None
    return any(isinstance(hook, GradientMask) for hook in (hooks or {}).values())
