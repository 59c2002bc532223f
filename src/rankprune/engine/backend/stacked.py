"""Which layers of a batch run for several images at once, with the images one below the other.

The first layers of a network have large images and few weights, the last ones small images and most of the weights. A
program for several images runs the first layers image by image, and the rest on values in which image g has the rows
from g * height on. Their weights and code are read once for all images, and only the last vector of all has
empty lanes. A window that reaches beyond an edge of its own image is masked, as at the edges of a single one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rankprune.engine.graph.graph import Graph, Node, Shape

from .choice import Choice
from .direct import direct_window
from .native import LANES
from .shape_choice import default_choice, even

PIXELS = 256  # of a small image, at most; in larger ones a layer's code is read for enough pixels already
WEIGHTS = 500_000  # non-zeros of the last layers, at about 11 bytes each with their code; fewer stay in near caches
DENSE_FROM = 0.15  # from this density on, a layer's inputs may come from the L3 cache, as each serves several weights
ROWS = 32  # of a task of a sparser layer, so that most inputs come from the L2 cache


@dataclass(frozen=True)
class Stack:
    """A network whose last nodes run for several images at once.

    Attributes:
        graph: The network. The values of the last nodes have the shapes of all images together; what they read of the
            other nodes is among the outputs.
        first: Index of the first node that runs for all images.
        outputs: The network's own outputs.
        handed: For each value that these nodes read of the others: the value of all images.
        late: Values of all images.
        choices: The kernels of the last nodes, where they are not the usual ones.
    """

    graph: Graph
    first: int
    outputs: list[int]
    handed: dict[int, int]
    late: frozenset[int]
    choices: dict[int, Choice]


def stack(graph: Graph, images: int, lanes: int, jit: bool) -> Stack | None:
    """Find the last nodes that can run for several images at once.

    Args:
        graph: The network.
        images: Number of images.
        lanes: Floats of the widest vectors.
        jit: Code may be generated.

    Returns:
        The network for that many images; None if there are no such nodes, or if they have few weights.
    """
    if not jit or lanes == LANES:
        return None  # no code is generated
    first = len(graph.nodes)
    while first and _fits(graph, graph.nodes[first - 1], images, lanes, jit):
        first -= 1
    last = graph.nodes[first:]
    made = {node.output for node in last}
    taken = sorted({value for node in last for value in node.inputs} - made)
    layers = [node for node in last if node.weight is not None]
    if sum(node.kernel.nonzeros for node in layers) < WEIGHTS or not made.issuperset(graph.outputs):
        return None
    if any(len(graph.shapes[value]) != 3 for value in taken):
        return None
    shapes = [stacked_shape(s, images) if v in made else s for v, s in enumerate(graph.shapes)]
    handed = {value: len(shapes) + i for i, value in enumerate(taken)}
    shapes += [stacked_shape(graph.shapes[value], images) for value in taken]
    last = [replace(node, inputs=[handed.get(value, value) for value in node.inputs]) for node in last]
    mixed = Graph(shapes, [*graph.nodes[:first], *last], graph.inputs, [*graph.outputs, *taken])
    choices = {}
    for i, node in enumerate(last, first):
        if node.op == "conv" and node.kernel.nonzeros < DENSE_FROM * node.kernel.size:
            _, height, width = shapes[node.output]
            rows = -(-height * width // LANES)
            choice = default_choice(node.kernel, node.attrs["groups"], rows, lanes, jit)
            choices[i] = replace(choice, height=even(rows, ROWS, lanes)) if choice.jit else choice
    return Stack(mixed, first, graph.outputs, handed, frozenset(made | set(handed.values())), choices)


def stacked_shape(shape: Shape, images: int) -> Shape:
    """Return the shape of a value of several images: the rows of all of them, or a vector for each.

    Args:
        shape: Shape of one image or vector.
        images: Number of images.

    Returns:
        The shape.
    """
    return (shape[0], images * shape[1], shape[2]) if len(shape) == 3 else (images, *shape)


def _fits(graph: Graph, node: Node, images: int, lanes: int, jit: bool) -> bool:
    """Whether the kernels can run a node for several images."""
    shape, ins = graph.shapes[node.output], [graph.shapes[value] for value in node.inputs]
    if len(shape) not in (1, 3) or math.prod(shape[1:]) > PIXELS:
        return False
    if node.op == "mean":
        return len(ins[0]) == 3
    if node.op in ("linear", "activation"):
        return True
    if node.op != "conv" or any(n % s for n, s in zip(ins[0][1:], node.attrs["stride"])):
        return False
    if tuple(node.kernel.shape[2:]) == (1, 1) and node.attrs["padding"] == [0, 0]:
        return True
    if math.prod(ins[0][1:]) > PIXELS:
        return False
    alone = Graph([stacked_shape(ins[0], images), stacked_shape(shape, images)])
    return direct_window(alone, replace(node, inputs=[0], output=1), lanes, jit, images) is not None
