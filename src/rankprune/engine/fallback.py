"""Leaves to torch what torch runs faster: segments between islands, or the whole module."""

from __future__ import annotations

import functools
from typing import Any

import torch

from rankprune.engine.frontend.call import Call
from rankprune.engine.frontend.capture import capture
from rankprune.engine.frontend.segments import Segment, as_island, cut
from rankprune.engine.frontend.trace import Traced

from .program import Maker, Native, Program, Refused, island_context
from .timing import in_turns

SAME = 1.03  # fewer threads are preferred if they take at most this times as long


def make_program(traced: Traced, maker: Maker, excluded: frozenset[str]) -> tuple[Program, frozenset[str]]:
    """Build a program, leaving to torch the segments that the kernels reject or, with tuning, that are too small.

    Args:
        traced: The traced module.
        maker: Turns segments into engines.
        excluded: Names of nodes that are left to torch.

    Returns:
        The program, and the names of all nodes that are left to torch.
    """
    while True:
        captured = capture(traced, excluded)
        steps = cut(captured)
        light: list[Segment] = []
        if maker.tune and len(steps) > 1:
            light = [s for s in steps if isinstance(s, Segment) and not s.heavy()]
        if not light:
            try:
                return Program(captured, steps, maker), excluded
            except Refused as error:
                light = [error.segment]
        excluded |= {node.name for segment in light for node in segment.origins}


def without_losers(
    traced: Traced, maker: Maker, program: Program, excluded: frozenset[str], call: Call
) -> tuple[Program, frozenset[str]]:
    """Compare each segment with torch running the same operators, and leave it to torch if that is faster.

    Args:
        traced: The traced module.
        maker: Turns segments into engines.
        program: The program so far.
        excluded: Names of nodes that are left to torch.
        call: The example.

    Returns:
        The program, and the names of all nodes that are left to torch.
    """
    if not program.islands:
        return program, excluded
    values = program.trace(call.batch, call.tensors)
    _choose_threads(program, call)
    lost: set[str] = set()
    for native in program.natives:
        if _slower(program, native, call.batch, values):
            lost |= {node.name for node in native.segment.origins}
    if lost:
        program, excluded = make_program(traced, maker, excluded | lost)
        _choose_threads(program, call)
    return program, excluded


def _choose_threads(program: Program, call: Call) -> None:
    """Run islands on one thread if that is faster: idle threads of torch spin on the cores that the engine uses."""
    if not program.islands or torch.get_num_threads() == 1:
        return

    def run(threads: int | None) -> None:
        program.island_threads = threads
        program.run(call.batch, call.tensors)

    every, one = in_turns([lambda: run(None), lambda: run(1)])
    program.island_threads = 1 if one < every else None


def best_threads(program: Program, call: Call, limit: int) -> dict[int, float]:
    """Measure 1, 2, 4, ... threads up to the limit, and use the smallest number that is about as fast as the best.

    Args:
        program: The program.
        call: The example.
        limit: Maximum number of threads.

    Returns:
        Minimum seconds by number of threads, the chosen number last.
    """
    counts = sorted({min(1 << k, limit) for k in range(limit.bit_length() + 1)})

    def run(threads: int) -> None:
        program.use_threads(threads)
        program.run(call.batch, call.tensors)

    seconds = dict(zip(counts, in_turns([functools.partial(run, n) for n in counts], _one_is_best)))
    chosen = next(n for n in counts if seconds[n] <= SAME * min(seconds.values()))
    program.use_threads(chosen)
    return {**{n: s for n, s in seconds.items() if n != chosen}, chosen: seconds[chosen]}


def _one_is_best(seconds: list[list[float]]) -> bool:
    """Whether one call was faster than every other in all rounds, by more than what counts as the same."""
    least = min(seconds, key=min)
    return all(SAME * max(least) < min(other) for other in seconds if other is not least)


def _slower(program: Program, native: Native, batch: int, values: dict[Any, Any]) -> bool:
    island = as_island(program.captured, native.segment)
    inputs = [values[key] for key in native.inputs]
    island_inputs = [_value(program, key, batch, values) for key in island.inputs]
    if any(value is None for value in island_inputs):
        return False  # torch would need a value that the program does not compute
    with island_context(None):
        calls = [lambda: native.run(batch, inputs), lambda: island.run(batch, island_inputs)]
        engine_seconds, torch_seconds = in_turns(calls)
    return engine_seconds > torch_seconds


def _value(program: Program, key: Any, batch: int, values: dict[Any, Any]) -> Any:
    """A value for timing; zeros if the previous segment only has it in another layout."""
    if key in values or not isinstance(key, int):
        return values.get(key)
    return torch.zeros(batch, *program.captured.graph.shapes[key])
