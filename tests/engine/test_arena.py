"""Places in the arena: values that live at once never overlap, others share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankprune.engine.backend.arena import ALIGN, Buffer, place


def test_by_hand() -> None:
    whole, early, late, small = Buffer(128, 0, 9), Buffer(100, 0, 3), Buffer(70, 4, 9), Buffer(5, 2, 5)
    assert place([small, late, early, whole]) == 128 + 128 + 64
    assert [b.at for b in (whole, early, late, small)] == [0, 128, 128, 256]


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 20), st.integers(0, 10)), min_size=1, max_size=40))
def test_values_that_live_at_once_lie_apart(made: list[tuple[int, int, int]]) -> None:
    buffers = [Buffer(size, first, first + life) for size, first, life in made]
    total = place(buffers)
    assert total == max(b.at + -(-b.size // ALIGN) * ALIGN for b in buffers)
    for i, a in enumerate(buffers):
        assert a.at % ALIGN == 0
        for b in buffers[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert a.at + a.size <= b.at or b.at + b.size <= a.at
