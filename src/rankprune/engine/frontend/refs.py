"""Tensors during capture: a view of a value is an array that says which number of the value is where.

The network is captured with two images, which reveals the batch axis: along it each number is followed by the same
number of the next image. Any reshape, permutation, slice or expansion is the same NumPy operation on that array.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from rankprune.engine.graph import strided
from rankprune.engine.graph.graph import Graph, Node, Unsupported
from rankprune.engine.graph.target import LANES

IMAGES = 2


@dataclass(frozen=True)
class Ref:
    """A tensor during capture, as a view of a value of the graph.

    Attributes:
        value: The value that is viewed.
        view: In the tensor's shape, which number is where: b * count + i is number i of image b.
        count: Numbers of the value per image.
        known_axis: The batch axis, where it need not be searched for.
    """

    value: int
    view: np.ndarray
    count: int
    known_axis: int | None = None

    def batch_axis(self) -> int:
        """Return the batch axis.

        Raises:
            Unsupported: There is no such axis.
        """
        if self._batch_axis is None:
            raise Unsupported("the images of a batch are mixed with one another")
        return self._batch_axis

    @functools.cached_property
    def _batch_axis(self) -> int | None:
        if self.known_axis is not None:
            return self.known_axis
        for axis, size in enumerate(self.view.shape):
            if size == IMAGES:
                first, second = np.moveaxis(self.view, axis, 0)
                if (second - first == self.count).all():
                    return axis
        return None

    def split_batch_axis(self) -> tuple[Ref, int | None]:
        """Return the tensor with the batch on an axis of its own.

        Windows or tokens of all images may share an axis: [batch * windows, ...] or [tokens * batch, channels].

        Returns:
            The view, and the axis of this one that was split into two for it (None if none was).

        Raises:
            Unsupported: The images are mixed in another way.
        """
        if self._batch_axis is not None:
            return self, None
        shape = self.view.shape
        splits = [(axis, n // IMAGES) for axis, n in enumerate(shape) if n % IMAGES == 0 and n > IMAGES]
        tries = [
            (axis, (*shape[:axis], *pair, *shape[axis + 1 :]))
            for axis, rest in splits
            for pair in ((IMAGES, rest), (rest, IMAGES))
        ]
        for axis, sizes in tries:
            split = Ref(self.value, self.view.reshape(sizes), self.count)
            if split._batch_axis is not None:
                return split, axis
        raise Unsupported("the images of a batch are mixed with one another")

    def same(self, other: Ref) -> bool:
        """Whether both tensors have the same numbers in the same places.

        Args:
            other: The other tensor.

        Returns:
            True if they have.
        """
        return self.value == other.value and np.array_equal(self.view, other.view)

    def local(self) -> np.ndarray:
        """Return the view of one image, without the batch axis."""
        return np.moveaxis(self.view, self.batch_axis(), 0)[0]


@dataclass(frozen=True)
class Size:
    """A number that depends on the batch size."""

    of: Callable[[int], Any]

    def is_batch_invariant(self) -> bool:
        """Whether it is the same for any batch size, or at least for each image of a batch."""
        few, more = np.asarray(self.of(IMAGES)), np.asarray(self.of(IMAGES + 1))
        return few.ndim == more.ndim and np.array_equal(few, more[tuple(map(slice, few.shape))])


def identity_view(graph: Graph, value: int, axis: int = 0) -> Ref:
    """Return a value as a tensor.

    Args:
        graph: The graph.
        value: The value.
        axis: Position of the batch axis.

    Returns:
        A view [batch, *shape], or with the batch at `axis`.
    """
    shape = graph.shapes[value]
    count = math.prod(shape)
    view = _counting(IMAGES * count).reshape(IMAGES, *shape)
    return Ref(value, np.moveaxis(view, 0, axis), count, axis)


_counted: WeakValueDictionary[int, np.ndarray] = WeakValueDictionary()


def _counting(size: int) -> np.ndarray:
    """0, 1, ... as a read-only array that all views of values of this size share, because images are large."""
    array = _counted.get(size)
    if array is None:
        array = np.arange(size)
        array.flags.writeable = False
        _counted[size] = array
    return array


def emit(graph: Graph, op: str, inputs: list[int], shape: Sequence[int], axis: int = 0, **more: Any) -> Ref:
    """Append an operator to the graph.

    Args:
        graph: The graph.
        op: Name of the operator in `graph/operator_table.py`.
        inputs: The values it reads.
        shape: Shape of its result, without the batch.
        axis: Position of the batch axis in the view of the result.
        **more: Attributes, arrays and weight of the node.

    Returns:
        A view of the result.
    """
    output = graph.value(tuple(shape))
    graph.nodes.append(Node(op, inputs, output, **more))
    return identity_view(graph, output, axis)


def image_pixels(graph: Graph, ref: Ref) -> np.ndarray | None:
    """Return which pixel of an image is where in a view [..., channels] of it.

    Args:
        graph: The graph.
        ref: The view, with a batch axis.

    Returns:
        The pixels; None if it is no such view, or if an operator on the image would waste more than 5 % of the lanes
        compared with tokens.
    """
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


def channels_last(image: Ref, pixels: np.ndarray, axis: int, shown: tuple[int, ...]) -> Ref:
    """Return an image [channels, height, width] as a tensor [..., channels].

    Args:
        image: The image.
        pixels: What `image_pixels` returned.
        axis: Position of the batch axis, alone or together with another axis.
        shown: Shape of the tensor.

    Returns:
        The tensor.
    """
    steps = image.view.reshape(IMAGES, -1, pixels.size)[:, :, 0]  # [image, channel]
    view = pixels[None, ..., None] + steps.reshape(IMAGES, *[1] * pixels.ndim, -1)
    return Ref(image.value, np.moveaxis(view, 0, axis).reshape(shown), image.count)


def materialize(graph: Graph, ref: Ref, shape: tuple[int, ...] | None = None) -> int:
    """Return a value that holds the numbers of a view in order, by a gather if there is no such value yet.

    Args:
        graph: The graph.
        ref: The view.
        shape: Shape of the value, without the batch; by default that of the view.

    Returns:
        The value.
    """
    local = ref.local()
    return pick(graph, ref.value, local if shape is None else local.reshape(shape))


def materialized(graph: Graph, ref: Ref) -> Ref:
    """Return the same tensor as a view of a value whose numbers are in order.

    Args:
        graph: The graph.
        ref: The tensor.

    Returns:
        The new view.
    """
    per_image, _ = ref.split_batch_axis()
    ordered = identity_view(graph, materialize(graph, per_image), per_image.batch_axis())
    return Ref(ordered.value, ordered.view.reshape(ref.view.shape), ordered.count)


def pick(graph: Graph, value: int, index: np.ndarray, constant: np.ndarray | None = None) -> int:
    """Return a value made of some numbers of another one, or that value itself if these are all its numbers in order.

    Args:
        graph: The graph.
        value: The source.
        index: Indices into the source, in the shape of the result; index -1 - i refers to number i of the constant.
        constant: Numbers that the source does not have, such as padding.

    Returns:
        The value.
    """
    flat = index.reshape(-1)
    if constant is None and graph.shapes[value] == index.shape and np.array_equal(flat, _counting(flat.size)):
        return value
    output = graph.value(index.shape)
    graph.nodes.append(Node("gather", [value], output, arrays=_gather(flat, index.shape, constant)))
    return output


def _gather(index: np.ndarray, shape: tuple[int, ...], constant: np.ndarray | None) -> dict[str, np.ndarray]:
    """A few nests of loops if the index is regular, otherwise the index itself."""
    fixed = {} if constant is None else {"constant": np.ascontiguousarray(constant, np.float32).reshape(-1)}
    places, known = np.arange(index.size), index >= 0
    try:
        rows = strided.to_array(strided.describe(index[known], places[known]))
        rest = strided.to_array(strided.describe(-1 - index[~known], places[~known]))
    except strided.Irregular:
        return {"index": np.asarray(index.reshape(shape), np.int32), **fixed}
    return {"nests": rows, **({"constant_nests": rest, **fixed} if fixed else {})}


def in_order(ref: Ref) -> tuple[Ref, int | None] | None:
    """Return `ref.split_batch_axis()` if the numbers of an image are in the same order as in the value.

    Args:
        ref: The view.

    Returns:
        The view with a batch axis and the axis that was split; None if the order differs.
    """
    try:
        per_image, split = ref.split_batch_axis()
    except Unsupported:
        return None
    flat = per_image.local().reshape(-1)
    return (per_image, split) if flat.size == ref.count and (flat[1:] > flat[:-1]).all() else None
