"""Mask updates at even distances: how often, from when to when, and along which course of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from .group import Group
from .schedules import Step, as_step, check_every, choose_every


@dataclass
class Periodic:
    """Mix-in: updates at every, 2 every, … below `update_end`.

    `every=None` derives the period from the number of steps: see `schedules.choose_every`.
    """

    every: int | None = field(default=None, kw_only=True)
    update_end: Step | None = field(default=None, kw_only=True)

    def period(self, total_steps: int) -> int:
        """The steps between two updates: `every`, or what suits a training of this length."""
        if self.every is None:
            return choose_every(lambda every: len(self.timetable(every, total_steps)), self.shortest_period())
        check_every(self.every)
        return self.every

    def shortest_period(self) -> int:
        """The shortest period that may be derived."""
        return 1

    def resolved(self, total_steps: int) -> Any:
        """A copy of this method whose `every` is a number."""
        return replace(self, every=self.period(total_steps))

    def default_end(self, every: int, total_steps: int) -> int:
        """The step before which updates take place where `update_end` is not given."""
        return total_steps + 1

    def end(self, total_steps: int, every: int | None = None) -> int:
        """The step before which updates take place, with this period or the method's own."""
        every = self.period(total_steps) if every is None else every
        if self.update_end is None:
            return min(self.default_end(every, total_steps), total_steps + 1)
        return min(as_step(self.update_end, total_steps, "update_end"), total_steps + 1)

    def timetable(self, every: int, total_steps: int) -> Sequence[int]:
        """The steps of the updates with this period."""
        return range(every, self.end(total_steps, every), every)

    def updates(self, total_steps: int) -> Sequence[int]:
        every = self.period(total_steps)
        steps = self.timetable(every, total_steps)
        if not steps:
            raise ValueError(
                f"no mask update fits: total_steps={total_steps} with every={every} and updates before step "
                f"{self.end(total_steps, every)}; lower every or train longer"
            )
        return steps


@dataclass
class Gradual(Periodic):
    """Mix-in: the budget falls from all weights to the final one along a schedule over the updates.

    Update u (from 0) aims at density d^(u/U), or the cubic of Zhu & Gupta, with U = prune_end // every, and at d from
    u = U on; the last update lands on d whatever the numbers.
    """

    at_once: ClassVar[bool] = False
    prune_end: Step = field(default=0.9, kw_only=True)
    density_schedule: Literal["exponential", "cubic"] = field(default="exponential", kw_only=True)

    def updates(self, total_steps: int) -> Sequence[int]:
        if self.density_schedule not in ("exponential", "cubic"):
            raise ValueError(f"density_schedule={self.density_schedule!r} is unknown: use 'exponential' or 'cubic'")
        return super().updates(total_steps)

    def start(self, group: Group) -> None:
        """Dense: the budget falls with the updates."""

    def default_end(self, every: int, total_steps: int) -> int:
        """Just past the update that reaches the final density."""
        reached = (as_step(self.prune_end, total_steps, "prune_end") // every + 1) * every
        return min(reached + 1, super().default_end(every, total_steps))

    def _ramp(self, total_steps: int) -> int:
        return as_step(self.prune_end, total_steps, "prune_end") // self.period(total_steps)

    def scheduled(self, group: Group) -> int:
        """The budget of the update at `group.step`."""
        number, ramp = group.update_number(), self._ramp(group.total_steps)
        if number >= min(ramp, len(group.updates()) - 1):
            return group.final
        final = group.final / group.total
        if self.density_schedule == "exponential":
            density = final ** (number / ramp)
        else:
            density = final + (1 - final) * (1 - number / ramp) ** 3
        return round(group.total * density)

    def reached_at(self, group: Group) -> int:
        steps = group.updates()
        return steps[min(self._ramp(group.total_steps), len(steps) - 1)]
