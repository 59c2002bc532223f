from __future__ import annotations

import pytest

from rankprune.core.schedules import as_step, cosine, cubic, exponential, linear, value_at


def test_ends_and_middles() -> None:
    for make in (cosine, cubic, exponential, linear):
        schedule = make(1.0, 0.1, 100)
        assert schedule(0) == pytest.approx(1.0)
        assert schedule(100) == schedule(1000) == pytest.approx(0.1)
        values = [schedule(t) for t in range(101)]
        assert values == sorted(values, reverse=True)
    assert cosine(0.3, 0.0, 10)(5) == pytest.approx(0.15)
    assert cubic(1.0, 0.0, 10)(5) == pytest.approx(0.125)
    assert exponential(1.0, 0.01, 10)(5) == pytest.approx(0.1)
    assert linear(0.0, 1.0, 0)(0) == 1.0


def test_a_value_is_a_number_or_a_callable() -> None:
    assert value_at(3, 7) == 3.0
    assert value_at(lambda t: t / 2, 7) == 3.5


def test_steps() -> None:
    assert as_step(7, 100) == 7
    assert as_step(0.29, 100) == as_step("29%", 100) == 29
    assert as_step(1.0, 100) == 100
    assert as_step("80%", 1173) == 938
    for bad in (1.5, -0.1, "abc", "120%", -3, True):
        with pytest.raises(ValueError, match="step"):
            as_step(bad, 100)
