"""Handlers of products of computed tensors, softmax, and attention, which `fuse_attention` combines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from rankprune.engine.graph.graph import Graph, Unsupported

from .operators_elementwise import binary, constant
from .operators_layer import linear
from .refs import IMAGES, Ref, emit, pick

Spec = list[int]  # first token and channel, then the steps of both along group, head, row and depth


def _ref(graph: Graph, x: Any, beside: Any) -> Ref:
    """A computed tensor, or a constant that becomes a value of the graph, the same for every image."""
    if isinstance(x, Ref):
        return x
    if not isinstance(x, Tensor) or not isinstance(beside, Ref):
        raise Unsupported("a product with something else than a tensor")
    flat = x.detach().float().numpy().reshape(-1)
    value = pick(graph, beside.value, -1 - np.arange(flat.size), flat)
    view = np.arange(flat.size).reshape(1, *x.shape)
    return Ref(value, np.broadcast_to(view, (IMAGES, *x.shape)), flat.size)


def _leading(graph: Graph, a: Any, b: Any) -> tuple[Ref, Ref, np.ndarray, np.ndarray, int, tuple[int, ...]]:
    """Both operands, their views for one image, the batch axis, and the shape of the leading axes."""
    refs = [_ref(graph, a, b), _ref(graph, b, a)]
    parts: list[np.ndarray] = []
    where: list[tuple[int, tuple[int, ...]]] = []
    for x, ref in zip((a, b), refs):
        if not isinstance(x, Ref):
            continue
        per_image, _ = ref.split_batch_axis()
        axis = per_image.batch_axis() - per_image.view.ndim
        if axis >= -2:
            raise Unsupported("a product over the batch")
        where.append((axis, x.view.shape[:-2]))
    if len({axis for axis, _ in where}) > 1:
        raise Unsupported("operands that do not have the batch on the same axis")
    axis, shown = where[0][0], np.broadcast_shapes(*(shape for _, shape in where))
    for x, ref in zip((a, b), refs):
        if isinstance(x, Ref):
            parts.append(ref.split_batch_axis()[0].local())
            continue
        view = ref.view[0]  # a constant has no batch axis, unless it was expanded
        place = view.ndim + axis
        if place >= 0 and view.shape[place] == IMAGES:
            both = np.asarray(x.detach().float().numpy())
            if not np.array_equal(both.take(0, place), both.take(1, place)):
                raise Unsupported("a constant that differs between images")
        parts.append(view.take(0, place) if place >= 0 else view)
    return refs[0], refs[1], parts[0], parts[1], axis, shown


def matmul(graph: Graph, a: Any, b: Any, stacked: bool | None = None) -> Ref:
    """Capture a matrix product.

    Args:
        graph: The graph.
        a: [..., row, depth].
        b: [..., depth, column].
        stacked: See `lower_product.result`; by default it follows from the operands.

    Returns:
        [..., row, column].

    Raises:
        Unsupported: An operand is a vector, or the product is over the batch.
    """
    if isinstance(b, Tensor) and b.dim() == 2:
        return linear(graph, a, b.T)
    if any((isinstance(x, Ref) and x.view.ndim < 3) or (isinstance(x, Tensor) and x.ndim < 2) for x in (a, b)):
        raise Unsupported("a product with a vector")
    first, second, left, right, axis, shown = _leading(graph, a, b)
    lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    groups, heads = math.prod(lead[:-1]), lead[-1] if lead else 1
    left = np.broadcast_to(left, (*lead, rows, depth)).reshape(groups, heads, rows, depth)
    right = np.broadcast_to(right, (*lead, depth, columns)).reshape(groups, heads, depth, columns).swapaxes(2, 3)
    if stacked is None:
        stacked = any(node.output == first.value and node.op == "softmax" for node in graph.nodes[-8:])
    a_value, a_spec = _operand(graph, first, left, True)
    b_value, b_spec = _operand(graph, second, right, False)
    shape = (groups * rows, heads * columns) if stacked else (rows, groups * heads * columns)
    attrs = {"a": a_spec, "b": b_spec, "sizes": [groups, heads, rows, columns, depth], "stacked": int(stacked)}
    result = emit(graph, "product", [a_value, b_value], shape, attrs=attrs)
    if stacked:
        view = result.view.reshape(IMAGES, groups, rows, heads, columns).transpose(0, 1, 3, 2, 4)
    else:
        view = result.view.reshape(IMAGES, rows, groups, heads, columns).transpose(0, 2, 3, 1, 4)
    view = np.moveaxis(view.reshape(IMAGES, *lead, rows, columns), 0, len(lead) + 3 + axis)
    return Ref(result.value, view.reshape(*shown, rows, columns), result.count)


def _operand(graph: Graph, ref: Ref, local: np.ndarray, along: bool) -> tuple[int, Spec]:
    """Value and steps of an operand [group, head, row, depth], copied where it does not lie in even steps.

    Args:
        along: Rows must follow one another in the tokens.
    """
    spec = _steps(local, graph.shapes[ref.value])
    if spec is not None and (not along or spec[6:8] == [1, 0]):
        return ref.value, spec
    _, heads, rows, depth = local.shape
    value = pick(graph, ref.value, local.transpose(2, 0, 1, 3).reshape(rows, -1))
    return value, [0, 0, 0, heads * depth, 0, depth, 1, 0, 0, 1]


def _steps(local: np.ndarray, shape: tuple[int, ...]) -> Spec | None:
    if len(shape) != 2:
        return None
    token, channel = np.divmod(local, shape[1])
    spec = [int(token.flat[0]), int(channel.flat[0])]
    totals = [np.full((1,) * 4, n) for n in spec]
    for axis, size in enumerate(local.shape):
        for i, places in enumerate((token, channel)):
            step = int(places.take(1, axis).flat[0] - places.flat[0]) if size > 1 else int(i == 0 and axis == 2)
            if step < 0:
                return None
            spec.append(step)
            totals[i] = totals[i] + step * np.arange(size).reshape([-1 if a == axis else 1 for a in range(4)])
    return spec if np.array_equal(totals[0], token) and np.array_equal(totals[1], channel) else None


def softmax(graph: Graph, x: Ref, dim: int, *_: Any, safe: bool = False) -> Ref:
    """Capture a softmax, over groups of channels of the value in place or over the last axis of a copy.

    Args:
        graph: The graph.
        x: The scores.
        dim: The axis.
        safe: Rows that are all -inf give 0 instead of NaN, as in torch's attention.

    Returns:
        The probabilities.

    Raises:
        Unsupported: The axis is the batch.
    """
    more = {"safe": 1} if safe else {}
    per_image, split = x.split_batch_axis()
    dim %= x.view.ndim
    if split is not None and split <= dim:
        if split == dim:
            raise Unsupported("a softmax over the batch")
        dim += 1
    axis = per_image.batch_axis()
    if axis == dim:
        raise Unsupported("a softmax over the batch")
    local = np.moveaxis(per_image.local(), dim - (axis < dim), -1)
    size, shape = local.shape[-1], graph.shapes[x.value]
    runs = local.reshape(-1, size)
    if len(shape) == 2 and local.size == x.count and shape[1] % size == 0 and _in_runs(runs):
        groups = {"groups": shape[1] // size} if shape[1] > size else {}
        result = emit(graph, "softmax", [x.value], shape, attrs=groups | more)
        return Ref(result.value, x.view, x.count)
    flat = local.shape if local.ndim == 1 else (runs.shape[0], size)
    result = emit(graph, "softmax", [pick(graph, x.value, local.reshape(flat))], flat, attrs=more)
    view = np.moveaxis(result.view.reshape(IMAGES, *local.shape), -1, dim - (axis < dim) + 1)
    return Ref(result.value, np.moveaxis(view, 0, axis).reshape(x.view.shape), result.count)


def _in_runs(runs: np.ndarray) -> bool:
    """Whether each row is a contiguous run that starts at a multiple of its length, and all rows are distinct."""
    first, size = runs[:, 0], runs.shape[1]
    even = (first % size == 0).all() and (runs == first[:, None] + np.arange(size)).all()
    return bool(even) and np.unique(first).size == first.size


def attention(
    graph: Graph, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, *,
    scale: Any = None, enable_gqa: bool = False, **more: Any,
) -> Ref:  # fmt: skip
    """Capture `scaled_dot_product_attention` as products, a scale, a bias and a softmax.

    Args:
        graph: The graph.
        q: Queries, [..., token, dim].
        k: Keys, [..., key, dim].
        v: Values, [..., key, value dim].
        mask: Added to the scores, or booleans.
        dropout: Must be 0.
        causal: Mask later keys.
        scale: Factor of the scores; by default 1 / sqrt(dim).
        enable_gqa: Repeat heads of keys and values.
        **more: Further arguments, which must be false.

    Returns:
        [..., token, value dim].

    Raises:
        Unsupported: There is dropout.
    """
    if dropout or any(more.values()):
        raise Unsupported("attention with dropout")
    if enable_gqa:
        k, v = (_repeated(x, q) for x in (k, v))
    swapped = Ref(k.value, k.view.swapaxes(-1, -2), k.count) if isinstance(k, Ref) else k.transpose(-1, -2)
    dim = (q.view if isinstance(q, Ref) else q).shape[-1]
    scores = matmul(graph, q, swapped, False)
    scores = constant(graph, "mul", scores, np.float32(dim**-0.5 if scale is None else scale))
    if causal:
        tokens, keys = scores.view.shape[-2:]
        scores = constant(graph, "add", scores, np.triu(np.full((tokens, keys), -np.inf, np.float32), 1))
    if isinstance(mask, Ref):
        scores = binary(graph, "add", scores, mask)
    elif mask is not None:
        values = mask.detach().numpy()
        allowed = np.where(values, 0.0, -np.inf) if values.dtype == bool else values
        scores = constant(graph, "add", scores, allowed.astype(np.float32))
    return matmul(graph, softmax(graph, scores, -1, safe=mask is not None), v, True)


def _repeated(x: Any, like: Any) -> Any:
    """Repeat the heads of keys or values for grouped queries."""
    if not isinstance(x, Ref) or not isinstance(like, Ref):
        raise Unsupported("grouped heads of a constant")
    times = like.view.shape[-3] // x.view.shape[-3]
    return Ref(x.value, x.view.repeat(times, -3), x.count)


def einsum(graph: Graph, equation: str, operands: list[Any], **_: Any) -> Ref:
    """Capture an einsum of two tensors as a matrix product over the summed letters.

    Args:
        graph: The graph.
        equation: The equation.
        operands: Two tensors.

    Returns:
        The result.

    Raises:
        Unsupported: There are other than two tensors, or one of them is summed alone.
    """
    ins, _arrow, out = equation.replace(" ", "").partition("->")
    letters = ins.split(",")
    if len(operands) != 2 or "." in equation or not out or any(len(set(word)) != len(word) for word in letters):
        raise Unsupported("an einsum that is not of two tensors")
    refs = list(operands)
    shared = [c for c in out if all(c in word for word in letters)]
    summed = [c for c in letters[0] if c in letters[1] and c not in out]
    own = [[c for c in word if c not in shared and c not in summed] for word in letters]
    if any(c not in out for word in own for c in word):
        raise Unsupported("an einsum that sums one tensor alone")
    sizes = {c: n for word, x in zip(letters, refs) for c, n in zip(word, (x.view if isinstance(x, Ref) else x).shape)}

    def matrix(which: int, rows: list[str], columns: list[str]) -> Any:
        x, order = refs[which], [letters[which].index(c) for c in (*shared, *rows, *columns)]
        shape = [sizes[c] for c in shared] + [math.prod(sizes[c] for c in part) for part in (rows, columns)]
        if isinstance(x, Ref):
            return Ref(x.value, x.view.transpose(order).reshape(shape), x.count)
        return x.permute(order).reshape(shape)

    result = matmul(graph, matrix(0, own[0], summed), matrix(1, summed, own[1]))
    now = [*shared, *own[0], *own[1]]
    view = result.view.reshape([sizes[c] for c in now]).transpose([now.index(c) for c in out])
    return Ref(result.value, view, result.count)


HANDLERS: dict[str, Callable[..., Any]] = {
    "matmul": lambda graph, a, b: matmul(graph, a, b), "bmm": lambda graph, a, b: matmul(graph, a, b),
    "softmax": softmax, "_softmax": softmax, "scaled_dot_product_attention": attention, "einsum": einsum,
}  # fmt: skip
