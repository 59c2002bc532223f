"""Pure functions of the optimizer step: schedules of values, spaced rounds, and how steps may be written."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]
Value = float | Schedule  # a hyper-parameter: a number, or a callable of the optimizer step
Step = int | float | str  # 500, 0.8 or "80%"
AUTHORS_EVERY = 100  # steps between mask updates in RigL, RPG and SET; a derived period is never longer


def value_at(value: Value, step: int) -> float:
    """The hyper-parameter at this optimizer step.

    Args:
        value: A number or a schedule.
        step: The optimizer step.
    """
    return float(value(step)) if callable(value) else float(value)


def as_step(step: Step, total_steps: int, name: str = "step") -> int:
    """An int is a step; a float in [0, 1] or a string such as "80%" is a share of `total_steps`.

    Args:
        step: The step or share.
        total_steps: Optimizer steps of the training.
        name: The setting, for the message.

    Raises:
        ValueError: It is not a step of the training.
    """
    if isinstance(step, bool):
        raise ValueError(f"{name}={step} is not a step: give an int, a share such as 0.8, or '80%'")
    if isinstance(step, int):
        number = step
    else:
        try:
            share = float(step.rstrip("%")) / 100 if isinstance(step, str) and step.endswith("%") else float(step)
        except (TypeError, ValueError):
            raise ValueError(f"{name}={step!r} is not a step: give an int, a share such as 0.8, or '80%'") from None
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"{name}={step!r} is outside the run: a share lies in 0..1 (an int counts steps)")
        number = math.floor(share * total_steps + 1e-9)  # in floats 0.29 * 100 is 28.999999999999996
    if number < 0:
        raise ValueError(f"{name}={step!r} lies before the run: steps count from 0")
    return number


def check_count(value: object, name: str, of: str) -> None:
    """Raise unless a setting is a positive integer.

    Args:
        value: The value of the setting.
        name: The setting.
        of: What it counts, such as "steps".

    Raises:
        ValueError: It is not an int of 1 or more.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} is not a number of {of}: give an int of 1 or more")


def choose_every(updates: Callable[[int], int], shortest: int = 1) -> int:
    """A period of updates for a training of any length, given how many updates each period would make.

    The authors' 100 steps if that makes 50 updates or more; otherwise the longest period that makes 100, but not less
    than `shortest` steps unless nothing else fits.

    Args:
        updates: Returns how many updates a period leads to.
        shortest: The shortest period that may be chosen.
    """
    if updates(AUTHORS_EVERY) >= 50:
        return AUTHORS_EVERY
    for every in range(AUTHORS_EVERY, shortest, -1):
        if updates(every) >= 100:
            return every
    return next((every for every in range(shortest, 1, -1) if updates(every)), 1)


def check_share(name: str, share: float) -> None:
    """Raise unless a setting is a share above 0.

    Args:
        name: The setting.
        share: Its value.

    Raises:
        ValueError: It is not in (0, 1].
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"{name}={share!r} is not a share: give a number in (0, 1]")


def cosine(start: float, end: float, steps: int) -> Schedule:
    """From `start` at step 0 to `end` at `steps`, flat afterwards: (1 + cos)/2.

    Args:
        start: The value at step 0.
        end: The value from `steps` on.
        steps: How long it takes.
    """
    return lambda step: end + (start - end) * (1 + math.cos(math.pi * _share(step, steps))) / 2


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` at step 0 to `end` at `steps` in a straight line, flat afterwards.

    Args:
        start: The value at step 0.
        end: The value from `steps` on.
        steps: How long it takes.
    """
    return lambda step: start + (end - start) * _share(step, steps)


def cubic(start: float, end: float, steps: int) -> Schedule:
    """Zhu & Gupta 2017: fast at first, flat at the end.

    Args:
        start: The value at step 0.
        end: The value from `steps` on.
        steps: How long it takes.
    """
    return lambda step: end + (start - end) * (1 - _share(step, steps)) ** 3


def exponential(start: float, end: float, steps: int) -> Schedule:
    """A constant ratio per step; `start` and `end` are positive.

    Args:
        start: The value at step 0.
        end: The value from `steps` on.
        steps: How long it takes.
    """
    return lambda step: start * (end / start) ** _share(step, steps)


def cyclic(low: float, high: float, steps: int, cycles: int = 1) -> Schedule:
    """From `low` to `high` and back, `cycles` times within `steps`, along cosines; `low` afterwards (EAST, 2024).

    Args:
        low: The value at the start and the end of a cycle.
        high: The value in the middle of a cycle.
        steps: How long all cycles take.
        cycles: How many there are.
    """
    swing = (high - low) / 2
    return lambda step: low + swing * (1 - math.cos(2 * math.pi * cycles * _share(step, steps)))


def evenly_spaced(first: int, last: int, count: int) -> list[int]:
    """`count` evenly spaced steps after `first`, the last at `last`; fewer if there are fewer steps between them.

    Args:
        first: The step before the first interval.
        last: The last of the steps.
        count: How many steps.
    """
    return sorted({max(first + 1, first + round((last - first) * j / count)) for j in range(1, count + 1)})


def cut_share(weights: int, share: float, rounds: int) -> int:
    """What is left after `rounds` prunings, each of a share of what is left, rounded up.

    Args:
        weights: How many weights there are at first.
        share: The share that one round cuts.
        rounds: How many rounds.
    """
    for _ in range(rounds):
        weights -= math.ceil(share * weights - 1e-9)  # less rounding errors, which would cut one weight more
    return weights


def left_after(total: int, final: int, done: int, rounds: int) -> int:
    """What is left of `total` after `done` of `rounds` prunings of equal shares; the last one reaches `final`.

    Args:
        total: Weights (or MACs) at first.
        final: Weights (or MACs) at the end.
        done: Rounds done.
        rounds: How many rounds there are.
    """
    share = 1.0 - (final / total) ** (1 / rounds)
    return final if done == rounds else max(final, cut_share(total, share, done))


def rounds_at_rate(sparsity: float, rate: float) -> int:
    """The least number of prunings, each of at most the share `rate` of what is left, that reach `sparsity`.

    Args:
        sparsity: The share to cut by the end.
        rate: The share that one round cuts.
    """
    if not 0.0 < rate < 1.0:
        raise ValueError(f"rate={rate!r} is not between 0 and 1: 0.2 cuts a fifth of what is left each round")
    return max(1, math.ceil(math.log(1.0 - sparsity) / math.log(1.0 - rate) - 1e-9))


def _share(step: int, steps: int) -> float:
    return min(max(step / steps, 0.0), 1.0) if steps > 0 else float(step >= 0)
