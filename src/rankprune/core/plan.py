"""When masks are updated and how many weights stay: small frozen dataclasses, a field of every method.

A `Plan` is what a user or a method chooses; `group.PlannedUpdates` is what attach computes from it, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from .cost import DenseGradientAtUpdates, DenseGradientWhilePruning, TrainingCost
from .schedules import (
    Schedule,
    Step,
    as_step,
    check_count,
    choose_every,
    cubic,
    evenly_spaced,
    exponential,
    left_after,
    rounds_at_rate,
)


@dataclass(frozen=True)
class Run:
    """The training that a plan is evaluated for.

    Attributes:
        total_steps: Optimizer steps of the training.
        sparsity: The target, if one was given.
        grows: Whether the method grows weights: those grown at the last step would stay 0.
        replaces_step: Whether an update replaces an optimizer step.
        total: The budget of the dense network, in weights or MACs.
        final: The budget at the end.
        steps: The steps of the updates, once they are known.
    """

    total_steps: int
    sparsity: float | None = None
    grows: bool = False
    replaces_step: bool = False
    total: int = 0
    final: int = 0
    steps: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """When masks are updated, and the budget after each update. A plan of your own defines both methods below."""

    periodic: ClassVar[bool] = False  # the updates have a period, which attach may derive
    varies: ClassVar[bool] = True  # the budget changes from update to update
    at_once: ClassVar[bool] = False  # `rankprune.prune` may replace it by one cut without training
    cost_by_gradient: ClassVar[TrainingCost] = DenseGradientAtUpdates()  # of training, if updates need the gradient

    def steps(self, run: Run) -> Sequence[int]:
        """The optimizer steps, from 1 and rising, at which masks are updated.

        Args:
            run: The training; `run.steps` is not known yet.
        """
        raise NotImplementedError(f"{type(self).__name__} needs steps(run)")

    def budget(self, done: int, run: Run) -> int:
        """The budget once `done` updates are made; 0 is at attach. The last update always lands on `run.final`.

        Args:
            done: How many updates have been made.
            run: The training.
        """
        raise NotImplementedError(f"{type(self).__name__} needs budget(done, run)")

    def reached(self, run: Run) -> int:
        """The step from which on the budget is the final one.

        Args:
            run: The training.
        """
        return 0 if not run.steps or not self.varies else run.steps[-1]

    def end(self, run: Run) -> int:
        """The step before which updates take place.

        Args:
            run: The training.
        """
        return run.steps[-1] + 1 if run.steps else 0


@dataclass(frozen=True, kw_only=True)
class AtOnce(Plan):
    """One cut, at attach."""

    varies: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def steps(self, run: Run) -> Sequence[int]:
        return ()

    def budget(self, done: int, run: Run) -> int:
        return run.final


@dataclass(frozen=True, kw_only=True)
class EveryStep(Plan):
    """An update at every step, at the final budget from the start.

    Args:
        update_end: The last step with an update; None: the last of training.
    """

    varies: ClassVar[bool] = False
    update_end: Step | None = None

    def steps(self, run: Run) -> Sequence[int]:
        last = run.total_steps if self.update_end is None else as_step(self.update_end, run.total_steps, "update_end")
        return range(1, min(max(last, 1), run.total_steps) + 1)

    def budget(self, done: int, run: Run) -> int:
        return run.final


@dataclass(frozen=True, kw_only=True)
class Periodic(Plan):
    """Updates at every, 2 every, … below `update_end`, at a constant budget.

    Args:
        every: Steps between two updates, the ΔT of RigL; None: derived from the length of training
            (`schedules.choose_every`).
        update_end: No update takes place at or after this step; None: at the end of training.
    """

    periodic: ClassVar[bool] = True
    varies: ClassVar[bool] = False
    every: int | None = None
    update_end: Step | None = None

    def steps(self, run: Run) -> Sequence[int]:
        every = self.period(run)
        steps = self.spaced(every, run)
        if not steps:
            raise ValueError(
                f"no mask update fits: total_steps={run.total_steps} with every={every} and updates before step "
                f"{self.end_with(every, run)}; lower every or train longer"
            )
        return steps

    def budget(self, done: int, run: Run) -> int:
        return run.final

    def end(self, run: Run) -> int:
        return self.end_with(self.period(run), run)

    def period(self, run: Run) -> int:
        """Steps between two updates: `every`, or derived from the length of training.

        Args:
            run: The training.
        """
        if self.every is None:
            return choose_every(lambda every: len(self.spaced(every, run)), self.shortest_period(run))
        check_count(self.every, "every", "steps")
        return self.every

    def shortest_period(self, run: Run) -> int:
        """The shortest period that may be derived: updates that replace steps must leave enough steps for training.

        Args:
            run: The training.
        """
        return 5 if run.replaces_step else 1

    def spaced(self, every: int, run: Run) -> Sequence[int]:
        """The steps of the updates with this period.

        Args:
            every: The period.
            run: The training.
        """
        return range(every, self.end_with(every, run), every)

    def default_end(self, every: int, run: Run) -> int:
        """The step before which updates take place if `update_end` is not given.

        Args:
            every: The period.
            run: The training.
        """
        return run.total_steps if run.grows else run.total_steps + 1

    def end_with(self, every: int, run: Run) -> int:
        """The step before which updates take place, with this period.

        Args:
            every: The period.
            run: The training.
        """
        if self.update_end is None:
            return min(self.default_end(every, run), run.total_steps + 1)
        return min(as_step(self.update_end, run.total_steps, "update_end"), run.total_steps + 1)


@dataclass(frozen=True, kw_only=True)
class Gradual(Periodic):
    """Updates at even distances along which the density falls from 1 to the final d.

    Update u (from 0) aims at density d^(u/U), or at the cubic of Zhu & Gupta, with U = prune_end // every, and at d
    from u = U on.

    Args:
        every: Steps between two updates; None: derived from the length of training.
        update_end: No update takes place at or after this step; None: just after the final density is reached.
        prune_end: The step at which the final density is reached.
        density_schedule: "exponential" or "cubic".
    """

    varies: ClassVar[bool] = True
    cost_by_gradient: ClassVar[TrainingCost] = DenseGradientWhilePruning()
    prune_end: Step = 0.9
    density_schedule: Literal["exponential", "cubic"] = "exponential"

    def budget(self, done: int, run: Run) -> int:
        last = self._last(run)
        if done == 0:
            return run.total
        if done > min(last, len(run.steps) - 1):
            return run.final
        curve = exponential if self.density_schedule == "exponential" else cubic
        return round(run.total * curve(1.0, run.final / run.total, last)(done - 1))

    def reached(self, run: Run) -> int:
        return run.steps[min(self._last(run), len(run.steps) - 1)]

    def shortest_period(self, run: Run) -> int:
        return 2 if run.replaces_step else 1  # shorter: with few updates each one would cut a large part

    def default_end(self, every: int, run: Run) -> int:
        """Just past the update that reaches the final density."""
        reached = (as_step(self.prune_end, run.total_steps, "prune_end") // every + 1) * every
        return min(reached + 1, super().default_end(every, run))

    def _last(self, run: Run) -> int:
        """U, the number of the update that reaches the final density; `run.steps[0]` is the period."""
        return as_step(self.prune_end, run.total_steps, "prune_end") // run.steps[0]


@dataclass(frozen=True, kw_only=True)
class Ramp(Plan):
    """An update at every step, along which the budget falls from `prune_start` to `prune_end`, by default as a cubic.

    Args:
        prune_start: The step at which the budget begins to fall.
        prune_end: The step at which it is the final one.
    """

    prune_start: Step = 0.0
    prune_end: Step = 0.5

    def steps(self, run: Run) -> Sequence[int]:
        self.ramp(run.total_steps)
        return range(1, run.total_steps + 1)

    def budget(self, done: int, run: Run) -> int:
        first, last = self.ramp(run.total_steps)
        if done == 0 or done >= last:
            return run.final if done else run.total
        return round(self.curve(run.total, run.final, last - first)(done - first))

    def curve(self, start: float, end: float, steps: int) -> Schedule:
        """The budget as a function of the steps since `prune_start`.

        Args:
            start: The budget at `prune_start`.
            end: The budget at `prune_end`.
            steps: How many steps lie between them.
        """
        return cubic(start, end, steps)

    def reached(self, run: Run) -> int:
        return max(self.ramp(run.total_steps)[1], 1)

    def ramp(self, total_steps: int) -> tuple[int, int]:
        """`prune_start` and `prune_end` as steps.

        Args:
            total_steps: Optimizer steps of the training.

        Raises:
            ValueError: `prune_start` lies after `prune_end`.
        """
        first = as_step(self.prune_start, total_steps, "prune_start")
        last = as_step(self.prune_end, total_steps, "prune_end")
        if first > last:
            start, end = self.prune_start, self.prune_end
            raise ValueError(f"prune_start={start!r} lies after prune_end={end!r}: pruning begins before it ends")
        return first, last


@dataclass(frozen=True, kw_only=True)
class SpacedRounds(Plan):
    """Base of the plans below: a few evenly spaced prunings, the last at `prune_end`; one, at attach, if that is 0."""

    at_once: ClassVar[bool] = True
    prune_end: Step = 0.6

    def count(self, run: Run) -> int:
        """How many rounds there are.

        Args:
            run: The training.
        """
        raise NotImplementedError(f"{type(self).__name__} needs count(run)")

    def steps(self, run: Run) -> Sequence[int]:
        end = min(as_step(self.prune_end, run.total_steps, "prune_end"), run.total_steps)
        end = end if self.at_once else max(end, 1)
        return evenly_spaced(0, end, self.count(run)) if end else ()

    def budget(self, done: int, run: Run) -> int:
        if not run.steps:
            return run.final
        return left_after(run.total, run.final, done, len(run.steps)) if done else run.total


@dataclass(frozen=True, kw_only=True)
class Rounds(SpacedRounds):
    """A few evenly spaced prunings, each of the same share of what is left.

    Args:
        rounds: How many prunings.
        prune_end: The step of the last one; 0: there is one, at attach.
    """

    rounds: int = 5

    def __post_init__(self) -> None:
        check_count(self.rounds, "rounds", "rounds")

    def count(self, run: Run) -> int:
        return self.rounds


@dataclass(frozen=True, kw_only=True)
class CubicRounds(Rounds):
    """A few evenly spaced prunings along the cubic of Zhu & Gupta, which cuts most at first.

    Args:
        rounds: How many prunings.
        prune_end: The step of the last one; 0: there is one, at attach.
    """

    def budget(self, done: int, run: Run) -> int:
        if not run.steps:
            return run.final
        return run.final + round(cubic(run.total - run.final, 0, len(run.steps))(done))


@dataclass(frozen=True, kw_only=True)
class RoundsAtRate(SpacedRounds):
    """As many evenly spaced prunings as are needed if each cuts at most the share `rate` of what is left.

    Args:
        rate: The largest share of what is left that one pruning cuts.
        prune_end: The step of the last one; 0: there is one, at attach.
    """

    rate: float = 0.2

    def count(self, run: Run) -> int:
        assert run.sparsity is not None
        return rounds_at_rate(run.sparsity, self.rate)


@dataclass(frozen=True, kw_only=True)
class Phases(Plan):
    """Alternating dense and sparse phases; the last one is sparse.

    Args:
        prune_at: Steps at which a sparse phase begins.
        restore_at: Steps at which a dense phase begins.
    """

    prune_at: Sequence[Step] = ()
    restore_at: Sequence[Step] = ()

    def steps(self, run: Run) -> Sequence[int]:
        return list(self.phases(run.total_steps))

    def budget(self, done: int, run: Run) -> int:
        sparse = done > 0 and self.phases(run.total_steps)[run.steps[done - 1]]
        return run.final if sparse else run.total

    def phases(self, total_steps: int) -> dict[int, bool]:
        """Whether the phase is sparse, by the step at which it begins. If two begin at one step, the sparse one holds.

        Args:
            total_steps: Optimizer steps of the training.

        Raises:
            ValueError: The last phase is not sparse.
        """
        events = {max(as_step(step, total_steps, "restore_at"), 1): False for step in self.restore_at}
        events |= {max(as_step(step, total_steps, "prune_at"), 1): True for step in self.prune_at}
        if not events or not events[max(events)]:
            prune, restore = tuple(self.prune_at), tuple(self.restore_at)
            raise ValueError(f"prune_at={prune} must end later than restore_at={restore}: the run ends sparse")
        return dict(sorted(events.items()))
