"""The report of a compilation: size, latency, and which operators torch runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rankprune.engine.backend.alone import Decision
from rankprune.engine.frontend.islands import Island
from rankprune.engine.graph.graph import Node

from .program import Native


@dataclass(frozen=True)
class Layer:
    """One layer of a plan.

    Attributes:
        name: Name of the layer.
        kernel: Its kernel, or "torch".
        nonzeros: Nonzero weights; None if it has no weight.
        density: Fraction of nonzero weights; None if it has no weight.
        seconds: Latency for one image; None if torch runs it.
        why: Why the kernel was chosen.
    """

    name: str
    kernel: str
    nonzeros: int | None
    density: float | None
    seconds: float | None
    why: str

    def __str__(self) -> str:
        count = "" if self.nonzeros is None else str(self.nonzeros)
        density = "" if self.density is None else f"{self.density:.4f}"
        spent = "" if self.seconds is None else f"{1e3 * self.seconds:.3f}"
        return f"{self.name:<28} {self.kernel:<26} {count:>12} {density:>8} {spent:>8}  {self.why}"


@dataclass(frozen=True)
class Report:
    """Size and latency of a module before and after compilation.

    Attributes:
        dense_bytes: Bytes of the module's parameters.
        weight_bytes: Bytes of the compiled weights.
        torch_seconds: Minimum latency of the module in torch.
        engine_seconds: Minimum latency of the compiled module.
        compile_seconds: Duration of the compilation.
        islands: Operators that torch runs because the engine does not support them.
        batch: Batch size of the measurement.
        left: Operators that torch runs because it is faster.
        torch_only: Why torch runs the whole module; empty if it does not.
        gain: Speed-up over torch: first and third quartile over the rounds.
        threads: Number of threads.
        tried: Minimum seconds by number of threads, if those were measured.
    """

    dense_bytes: int
    weight_bytes: int
    torch_seconds: float
    engine_seconds: float
    compile_seconds: float
    islands: tuple[str, ...]
    batch: int = 1
    left: tuple[str, ...] = ()
    torch_only: str = ""
    gain: tuple[float, float] = (1.0, 1.0)
    threads: int = 1
    tried: dict[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        low, high = self.gain
        speed = f"{low:.2f} to {high:.2f} x faster" if low > 1.02 else "not faster"
        text = (
            f"weights {self.dense_bytes / 1e6:.1f} MB -> {self.weight_bytes / 1e6:.1f} MB; batch {self.batch} "
            f"{self.torch_seconds * 1e3:.2f} ms -> {self.engine_seconds * 1e3:.2f} ms ({speed} than torch); "
            f"{self._threads()}; compiled in {self.compile_seconds:.1f} s"
        )
        if self.torch_only:
            return f"{text}; torch runs the whole module: {self.torch_only}"
        if self.islands:
            text += f"; run by torch: {counted(self.islands)}"
        return text + (f"; run by torch because it is faster there: {counted(self.left)}" if self.left else "")

    def _threads(self) -> str:
        counted = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        tried = ", ".join(f"{n}: {1e3 * seconds:.2f} ms" for n, seconds in sorted(self.tried.items()))
        return f"{counted} (measured {tried})" if tried else counted


def counted(names: tuple[str, ...]) -> str:
    """Join names in order of their first appearance, with their number of occurrences.

    Args:
        names: The names.

    Returns:
        Such as "sort x 2, topk".
    """
    return ", ".join(f"{name} x {n}" if n > 1 else name for name, n in Counter(names).items())


def island_layers(island: Island) -> list[Layer]:
    """Describe the operators of an island, which torch runs.

    Args:
        island: The island.

    Returns:
        One layer per operator.
    """
    return [Layer(f"{module} {name}".strip(), "torch", None, None, None, why) for name, module, why in island.operators]


def native_layers(native: Native, repeats: int) -> list[Layer]:
    """Measure each layer of a segment for one image.

    Args:
        native: The segment with its engine.
        repeats: Number of runs, of which the minimum counts.

    Returns:
        One layer per node.
    """
    engine = native.engine
    seconds, of_node = engine.profile(engine.blank(), repeats=repeats)
    program = engine.lowered(False)
    assert program is not None
    layers = []
    for index, node in enumerate(engine.graph.nodes):
        spent = float(sum(s for s, n in zip(seconds, of_node) if n == index))
        layers.append(_layer(node, str(program.choices.get(index, "")), spent, native.decisions.one.get(index)))
    return layers


def _layer(node: Node, kernel: str, spent: float, decision: Decision | None) -> Layer:
    if node.weight is None:
        return Layer(f"{node.name} {node.op}".strip(), kernel, None, None, spent, "")
    density = node.weight.nonzeros / node.weight.size
    why = decision.why if decision else "not tuned"
    return Layer(node.name or node.op, kernel, node.weight.nonzeros, density, spent, why)
