"""Values during capture: a view of a graph's value is an array that says which number stands where.

The network is followed with two images, so that the batch axis shows itself: along it the same number of the next image
stands. Any reshape, permutation, slice or expansion is the same NumPy operation on that array.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankprune.engine.graph import strided
from rankprune.engine.graph.graph import Graph, Node, Unsupported
from rankprune.engine.graph.target import LANES

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

    def apart(self) -> tuple[Ref, int | None]:
        """With the batch on an axis of its own, and which axis, if any, was split for that.

        Windows or tokens of all images may stand on one axis: (batch · windows, ...), (tokens · batch, channels).
        """
        shape = self.view.shape
        splits = [(axis, n // IMAGES) for axis, n in enumerate(shape) if n % IMAGES == 0 and n > IMAGES]
        tries = [(None, shape)] + [
            (axis, (*shape[:axis], *pair, *shape[axis + 1 :]))
            for axis, rest in splits
            for pair in ((IMAGES, rest), (rest, IMAGES))
        ]
        for axis, sizes in tries:
            found = Ref(self.value, self.view.reshape(sizes), self.count)
            with contextlib.suppress(Unsupported):
                found.batch_axis()
                return found, axis
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


def emit(graph: Graph, op: str, inputs: list[int], shape: Sequence[int], axis: int = 0, **more: Any) -> Ref:
    output = graph.value(tuple(shape))
    graph.nodes.append(Node(op, inputs, output, **more))
    return whole(graph, output, axis)


def image_pixels(graph: Graph, ref: Ref) -> np.ndarray | None:
    """Which pixel of an image stands where in a view of it with its channels last, if working on the image as it lies
    wastes hardly more lanes than tokens would; None otherwise."""
    shape = graph.shapes[ref.value]
    local = ref.local()
    if len(shape) != 3 or local.ndim < 2 or local.size != ref.count or local.shape[-1] != shape[0]:
        return None
    rows, width = shape[1:]
    lanes = rows * (-(-width // LANES) * LANES)
    if lanes > 1.05 * (-(-rows * width // LANES) * LANES):
        return None
    pixels = local[..., 0]
    steps = np.arange(shape[0]) * (rows * width)
    if pixels.max() >= rows * width or (local != pixels[..., None] + steps).any():
        return None
    return pixels if np.unique(pixels).size == pixels.size else None


def channels_last(made: Ref, pixels: np.ndarray, axis: int, shown: tuple[int, ...]) -> Ref:
    """An image seen as `image_pixels` says, in a shape with the batch on (or in) an axis."""
    steps = made.view.reshape(IMAGES, -1, pixels.size)[:, :, 0]  # [image, channel]
    view = pixels[None, ..., None] + steps.reshape(IMAGES, *[1] * pixels.ndim, -1)
    return Ref(made.value, np.moveaxis(view, 0, axis).reshape(shown), made.count)


def settle(graph: Graph, ref: Ref, shape: tuple[int, ...] | None = None) -> int:
    """A value that holds one image's view in order (in `shape`), made by a gather unless it is there already."""
    local = ref.local()
    return pick(graph, ref.value, local if shape is None else local.reshape(shape))


def settled(graph: Graph, ref: Ref) -> Ref:
    """The same tensor as a value of its own, wherever its batch axis is, even as a part of another axis."""
    apart, _ = ref.apart()
    made = whole(graph, settle(graph, apart), apart.batch_axis())
    return Ref(made.value, made.view.reshape(ref.view.shape), made.count)


def pick(graph: Graph, value: int, index: np.ndarray, constant: np.ndarray | None = None) -> int:
    """A value of the numbers `index` of another one, or that one if they are all its numbers in order.

    An index below 0 is one of the constant's numbers, from -1 on downwards.
    """
    flat = index.reshape(-1)
    if constant is None and graph.shapes[value] == index.shape and (flat == np.arange(flat.size)).all():
        return value
    output = graph.value(index.shape)
    graph.nodes.append(Node("gather", [value], output, arrays=_gather(flat, index.shape, constant)))
    return output


def _gather(index: np.ndarray, shape: tuple[int, ...], constant: np.ndarray | None) -> dict[str, np.ndarray]:
    """Few loops where the index is regular, the index itself where not."""
    fixed = {} if constant is None else {"constant": np.ascontiguousarray(constant, np.float32).reshape(-1)}
    places, known = np.arange(index.size), index >= 0
    try:
        rows = strided.to_array(strided.describe(index[known], places[known]))
        rest = strided.to_array(strided.describe(-1 - index[~known], places[~known]))
    except strided.Irregular:
        return {"index": np.asarray(index.reshape(shape), np.int32), **fixed}
    return {"nests": rows, **({"constant_nests": rest, **fixed} if fixed else {})}
