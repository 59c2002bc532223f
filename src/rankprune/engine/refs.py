"""Values during capture: a view of a graph's value is an array that says which number stands where.

The network is followed with two images, so that the batch axis shows itself: along it the same number of the next image
stands. Any reshape, permutation, slice or expansion is the same NumPy operation on that array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .graph import Graph, Node, Unsupported

IMAGES = 2


@dataclass(frozen=True)
class Ref:
    """A view of value `value`: entry b·count + i is number i of image b."""

    value: int
    view: np.ndarray
    count: int

    def batch_axis(self) -> int:
        for axis, size in enumerate(self.view.shape):
            if size == IMAGES and (self.view.take(1, axis) - self.view.take(0, axis) == self.count).all():
                return axis
        raise Unsupported("the images of a batch are mixed with one another")

    def same(self, other: Ref) -> bool:
        return self.value == other.value and np.array_equal(self.view, other.view)

    def local(self) -> np.ndarray:
        """The view of one image, without the batch axis."""
        return self.view.take(0, self.batch_axis())


@dataclass(frozen=True)
class Size:
    """A number that depends on how many images there are."""

    of: Callable[[int], Any]

    def steady(self) -> bool:
        """Whether it is the same for any number of images, or at least for each image of a batch."""
        few, more = np.asarray(self.of(IMAGES)), np.asarray(self.of(IMAGES + 1))
        return few.ndim == more.ndim and np.array_equal(few, more[tuple(map(slice, few.shape))])


def whole(graph: Graph, value: int, axis: int = 0) -> Ref:
    """The value as it is, with the batch axis in front (or elsewhere)."""
    shape = graph.shapes[value]
    count = int(np.prod(shape))
    view = np.arange(IMAGES * count).reshape(IMAGES, *shape)
    return Ref(value, np.moveaxis(view, 0, axis), count)


def settle(graph: Graph, ref: Ref, shape: tuple[int, ...] | None = None, constant: np.ndarray | None = None) -> int:
    """A value that holds one image's view in order (in `shape`), made by a gather unless it is there already."""
    local = ref.local()
    shape = local.shape if shape is None else shape
    index = local.reshape(-1)
    if graph.shapes[ref.value] == tuple(shape) and (index == np.arange(index.size)).all():
        return ref.value
    output = graph.value(shape)
    arrays = {"index": index.reshape(shape).astype(np.int32)}
    if constant is not None:
        arrays["constant"] = constant
    graph.nodes.append(Node("gather", [ref.value], output, arrays=arrays))
    return output
