"""The settings of plans as keywords of the methods that take them, for type checkers and editors.

`RPG(lam=4.0, every=50)` hands `every` to the plan of the method (`settings.route_to_plan`), which a type checker cannot
know. A method derives from the base below that declares the keywords of its plan. At run time such a base only reads
them back, `RPG(every=50).every`: it has no fields and no methods, so the order of bases does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from .schedules import Step

if TYPE_CHECKING:
    from dataclasses import dataclass as plan_keywords

    def of_plan() -> Any:
        """The default of a keyword: that of the method's plan."""
else:

    def plan_keywords(**_):
        """Class decorator: a dataclass to type checkers, nothing at run time."""
        return lambda cls: cls

    class of_plan:
        """Reads a setting from the method's plan."""

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, method, owner):
            return self if method is None else getattr(method.plan, self.name)


@plan_keywords(kw_only=True)
class EveryStepKeywords:
    """The keywords of `EveryStep`."""

    update_end: Step | None = of_plan()


@plan_keywords(kw_only=True)
class PeriodicKeywords:
    """The keywords of `Periodic`."""

    every: int | None = of_plan()
    update_end: Step | None = of_plan()


@plan_keywords(kw_only=True)
class GradualKeywords(PeriodicKeywords):
    """The keywords of `Gradual`."""

    prune_end: Step = of_plan()
    density_schedule: Literal["exponential", "cubic"] = of_plan()


@plan_keywords(kw_only=True)
class RampKeywords:
    """The keywords of `Ramp`."""

    prune_start: Step = of_plan()
    prune_end: Step = of_plan()


@plan_keywords(kw_only=True)
class RoundsKeywords:
    """The keywords of `Rounds` and `CubicRounds`."""

    rounds: int = of_plan()
    prune_end: Step = of_plan()


@plan_keywords(kw_only=True)
class RoundsAtRateKeywords:
    """The keywords of `RoundsAtRate`."""

    rate: float = of_plan()
    prune_end: Step = of_plan()


@plan_keywords(kw_only=True)
class PhasesKeywords:
    """The keywords of `Phases`."""

    prune_at: Sequence[Step] = of_plan()
    restore_at: Sequence[Step] = of_plan()
