"""A captured module that is ready to run: engines for its segments, torch for its islands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rankprune.engine.backend.alone import Decision
from rankprune.engine.backend.choice import ByLayout, Choice, KernelPlan
from rankprune.engine.backend.engine import MIN_IMAGES_FOR_EIGHT, Engine
from rankprune.engine.backend.tuning import tune as measure
from rankprune.engine.frontend.capture import Captured, Foreign, Literal
from rankprune.engine.frontend.islands import Island, Key
from rankprune.engine.frontend.segments import Segment, Step, key_of
from rankprune.engine.graph.fusion import fuse
from rankprune.engine.graph.graph import Graph, Unsupported

from .progress import Say, silent

Decisions = ByLayout[dict[int, Decision]]  # by the index of the node


@dataclass(frozen=True)
class Native:
    """A segment of the graph with its engine and what was measured for it."""

    engine: Engine
    decisions: Decisions
    inputs: list[int]
    outputs: list[int]
    segment: Segment

    def run(self, batch: int, values: Sequence[Tensor]) -> list[Tensor]:
        """Run the segment.

        Args:
            batch: Number of images.
            values: Its inputs.

        Returns:
            Its outputs.
        """
        return [torch.from_numpy(a) for a in self.engine([v.detach().contiguous().numpy() for v in values])]


class Refused(Unsupported):
    """The kernels cannot run a segment, which is only known when it is lowered.

    Args:
        segment: The segment.
        why: The reason.
    """

    def __init__(self, segment: Segment, why: str) -> None:
        super().__init__(why)
        self.segment = segment


@dataclass(frozen=True)
class Maker:
    """Turns segments into engines.

    Attributes:
        variant: The instruction set.
        threads: Number of threads.
        tune: Measure kernels.
        batch: Batch size of the example.
        known: Kernels that were chosen for another program of the same module, by the layers' names.
        say: Called with each step.
        engines: Engines made so far, by the nodes they compute.
    """

    variant: str
    threads: int
    tune: bool
    batch: int
    known: ByLayout[dict[str, Choice]] | None = None
    say: Say = silent
    engines: dict[tuple[str, ...], tuple[Engine, Decisions]] = field(default_factory=dict)

    def native(self, segment: Segment) -> Native:
        """Return the engine of a segment, made when first needed.

        Args:
            segment: The segment.

        Returns:
            The segment with its engine.

        Raises:
            Refused: The kernels cannot run it.
        """
        place = {node.output: i for i, node in enumerate(segment.graph.nodes)}
        key = (*(n.name for n in segment.origins), *(str(place.get(v)) for v in segment.outputs))
        if key not in self.engines:
            try:
                self.engines[key] = self._build(segment)
            except Unsupported as error:
                raise Refused(segment, str(error)) from None
        engine, decisions = self.engines[key]
        return Native(engine, decisions, segment.inputs, segment.outputs, segment)

    def _build(self, segment: Segment) -> tuple[Engine, Decisions]:
        graph = Graph(segment.graph.shapes, list(segment.graph.nodes), segment.graph.inputs, segment.graph.outputs)
        fuse(graph)
        decisions = self._decide(graph) if self.tune and self.known is None else Decisions({}, {})
        if self.known is not None:
            kernels = KernelPlan(_by_node(graph, self.known.one), _by_node(graph, self.known.eight))
        else:
            kernels = KernelPlan(
                *({n: d.choice for n, d in chosen.items()} for chosen in (decisions.one, decisions.eight))
            )
        engine = Engine(graph, self.threads, kernels, self.variant)
        for node, kept in zip(graph.nodes, engine.graph.nodes):
            node.weight = kept.weight  # keep only the engine's packed weight in memory
        if self.tune and self.known is None and self.batch >= MIN_IMAGES_FOR_EIGHT:
            engine.choose_layout(self.batch)
        return engine, decisions

    def _decide(self, graph: Graph) -> Decisions:
        eight = measure(graph, True, self.variant, self.say) if self.batch >= MIN_IMAGES_FOR_EIGHT else {}
        return Decisions(measure(graph, False, self.variant, self.say), eight)


@contextlib.contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads within the block.

    Args:
        threads: The number; None leaves it unchanged.

    Yields:
        Nothing.
    """
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def island_context(threads: int | None) -> Iterator[None]:
    """The context in which islands run: in float32 even under autocast, because the engine computes in float32.

    Args:
        threads: torch's number of threads; None leaves it unchanged.

    Yields:
        Nothing.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch_threads(threads):
        yield


class Program:
    """Runs inputs of one signature. It may be called from several threads at once.

    Args:
        captured: The captured module.
        steps: Its segments and islands, in order.
        maker: Turns segments into engines.

    Raises:
        Refused: The kernels cannot run a segment.
    """

    island_threads: int | None = None  # torch's number of threads in islands; None leaves it unchanged

    def __init__(self, captured: Captured, steps: Sequence[Step], maker: Maker) -> None:
        self._spec = captured.traced.spec
        self.captured = captured
        self.steps: list[Native | Island] = [maker.native(s) if isinstance(s, Segment) else s for s in steps]
        self._torch = any(isinstance(step, Island) for step in self.steps)
        self._inputs = self._input_keys(captured)
        self._outputs = captured.outputs
        kept: set[Key] = {key_of(out) for out in self._outputs if not isinstance(out, Literal)}
        self._last: list[list[Key]] = []  # values that are not needed after each step
        for step in reversed(self.steps):
            self._last.append([key for key in {*step.inputs, *step.outputs} if key not in kept])
            kept |= {*step.inputs, *step.outputs}
        self._last.reverse()

    @staticmethod
    def _input_keys(captured: Captured) -> list[Key]:
        values = iter(captured.graph.inputs)
        return [
            next(values) if not isinstance(captured.env[node], Foreign) else node.name
            for node in captured.traced.inputs
        ]

    def run(self, batch: int, tensors: Sequence[Tensor]) -> Any:
        """Run the program.

        Args:
            batch: Number of images.
            tensors: The input tensors.

        Returns:
            The module's result.
        """
        values = self.trace(batch, tensors, keep=False)
        leaves = []
        for out in self._outputs:
            if isinstance(out, Literal):
                leaves.append(out.value.clone() if isinstance(out.value, Tensor) else out.value)
            else:
                leaves.append(values[key_of(out)])
        return pytree.tree_unflatten(leaves, self._spec)

    def trace(self, batch: int, tensors: Sequence[Tensor], keep: bool = True) -> dict[Key, Any]:
        """Run the program and return its values.

        Args:
            batch: Number of images.
            tensors: The input tensors.
            keep: Return every value; otherwise only those that the module returns.

        Returns:
            The values by key.
        """
        values: dict[Key, Any] = dict(zip(self._inputs, tensors))
        with island_context(self.island_threads) if self._torch else contextlib.nullcontext():
            for step, last in zip(self.steps, self._last):
                values.update(zip(step.outputs, step.run(batch, [values[key] for key in step.inputs])))
                if not keep:
                    for key in last:
                        values.pop(key, None)
        return values

    def use_threads(self, threads: int) -> None:
        """Set the number of threads of the kernels.

        Args:
            threads: The number.
        """
        for native in self.natives:
            native.engine.threads = threads

    @property
    def natives(self) -> list[Native]:
        """The steps that run on the engine."""
        return [step for step in self.steps if isinstance(step, Native)]

    @property
    def islands(self) -> list[Island]:
        """The steps that run in torch."""
        return [step for step in self.steps if isinstance(step, Island)]

    def kernels(self) -> ByLayout[dict[str, Choice]]:
        """Return the kernel of each layer by its name, for programs of other input sizes."""
        kernels_by_name: ByLayout[dict[str, Choice]] = ByLayout({}, {})
        for native in self.natives:
            nodes, kernels = native.engine.graph.nodes, native.engine.kernels
            for eight in (False, True):
                kernels_by_name.of(eight).update({nodes[i].name: choice for i, choice in kernels.of(eight).items()})
        return kernels_by_name


def _by_node(graph: Graph, named: Mapping[str, Choice]) -> dict[int, Choice]:
    return {i: named[node.name] for i, node in enumerate(graph.nodes) if node.weight and node.name in named}
