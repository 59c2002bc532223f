"""Declarations of all operators of the kernels; see `schema.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import strided
from .graph import Node, Shape
from .schema import Array, Operator, integer, integers, number, numbers, sizes, word
from .target import ACTIVATIONS, OPERATIONS

_ACTIVATION = {"activation": word(ACTIVATIONS)}
_PARAMETERS = {"parameters": numbers(2)}
_WINDOW = {"stride": integers(2, 1), "padding": integers(2), "dilation": integers(2, 1)}
_MANY = 1 << 20


def _same(node: Node, ins: list[Shape], out: Shape) -> bool:
    return ins[0] == out


def _windowed(node: Node, kernel: tuple[int, ...], source: Shape, out: Shape, ceil: bool) -> bool:
    for axis in range(2):
        stride, pad, spread = (node.attrs[name][axis] for name in ("stride", "padding", "dilation"))
        room = source[1 + axis] + 2 * pad - spread * (kernel[axis] - 1) - 1
        sizes = [room // stride + 1] + ([-(-room // stride) + 1] if ceil else [])
        if room < 0 or out[1 + axis] not in sizes:
            return False
    return True


def _conv(node: Node, ins: list[Shape], out: Shape) -> bool:
    shape, groups = node.kernel.shape, node.attrs["groups"]
    if len(ins[0]) != 3 or len(out) != 3 or ins[1:] not in ([], [out]):
        return False
    fits = shape[0] == out[0] and shape[0] % groups == 0 and shape[1] * groups == ins[0][0]
    return fits and _windowed(node, shape[2:], ins[0], out, False)


def _pool(node: Node, ins: list[Shape], out: Shape) -> bool:
    kernel = node.attrs["kernel"]
    small = all(2 * p <= k for p, k in zip(node.attrs["padding"], kernel))
    fits = len(ins[0]) == 3 and len(out) == 3 and ins[0][0] == out[0]
    return fits and small and _windowed(node, kernel, ins[0], out, True)


def _linear(node: Node, ins: list[Shape], out: Shape) -> bool:
    shape = node.kernel.shape
    fits = len(ins[0]) in (1, 2) and ins[1:] in ([], [out])
    return fits and (*ins[0][:-1], shape[0]) == out and ins[0][-1] == shape[1]


def _binary(node: Node, ins: list[Shape], out: Shape) -> bool:
    small = tuple(node.attrs.get("broadcast", out))
    if ins[0] != out or len(ins) == 1:
        return ins[0] == out and small == out
    return (ins[1] == out if small == out else math.prod(ins[1]) == math.prod(small)) and _repeats(small, out)


def _repeats(small: Shape, out: Shape) -> bool:
    """Whether a tensor of shape `small` broadcasts to `out` along axes of size 1."""
    if len(small) != len(out) or (len(out) > 3 and small != out):
        return False
    return all(n in (1, size) for n, size in zip(small, out))


def _inside(spec: list[int], sizes: tuple[int, ...], shape: Shape) -> bool:
    """Whether an operand (see `lower_product.place`) stays within tokens [T, C]."""
    last = [first + sum((n - 1) * step for n, step in zip(sizes, spec[2 + i :: 2])) for i, first in enumerate(spec[:2])]
    return len(shape) == 2 and last[0] < shape[0] and last[1] < shape[1]


def _result(n: dict[str, Any], groups: int, heads: int, rows: int, columns: int) -> Shape:
    return (groups * rows, heads * columns) if n["stacked"] else (rows, groups * heads * columns)


def _along_tokens(spec: list[int]) -> bool:
    """Whether the rows of an operand are consecutive tokens."""
    return spec[6:8] == [1, 0]


def _product(node: Node, ins: list[Shape], out: Shape) -> bool:
    n = node.attrs
    groups, heads, rows, columns, depth = n["sizes"]
    fits = _inside(n["a"], (groups, heads, rows, depth), ins[0]) and _along_tokens(n["a"])
    fits = fits and _inside(n["b"], (groups, heads, columns, depth), ins[1])
    return fits and out == _result(n, groups, heads, rows, columns)


def _attention(node: Node, ins: list[Shape], out: Shape) -> bool:
    n = node.attrs
    groups, heads, tokens, keys, dim, value_dim = n["sizes"]
    both = groups, heads
    fits = _inside(n["q"], (*both, tokens, dim), ins[0]) and _along_tokens(n["q"])
    fits = fits and _inside(n["k"], (*both, keys, dim), ins[1]) and _inside(n["v"], (*both, keys, value_dim), ins[2])
    total = groups * heads * keys
    return fits and ins[3:] in ([], [(total,)], [(tokens, total)]) and out == _result(n, *both, tokens, value_dim)


def _attention_arrays(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    """A scale per group and head, and a bias [group, head, key, token]; of size 1 where they are constant."""
    groups, heads, tokens, keys, _, _ = node.attrs["sizes"]
    full = {"scale": (groups, heads), "bias": (groups, heads, keys, tokens)}
    shapes = {name: node.arrays[name].shape if name in node.arrays else shape for name, shape in full.items()}
    for name, shape in full.items():
        if len(shapes[name]) != len(shape) or any(n not in (1, m) for n, m in zip(shapes[name], shape)):
            shapes[name] = shape
    bias = {"bias": Array(shapes["bias"], needed=False)} if len(ins) == 3 else {}
    return {"scale": Array(shapes["scale"]), **bias}


def _mean(node: Node, ins: list[Shape], out: Shape) -> bool:
    return len(ins[0]) in (2, 3) and out == (ins[0][:1] if len(ins[0]) == 3 else ins[0][1:])


def _gather(node: Node, ins: list[Shape], out: Shape) -> bool:
    """By nests of loops or an index; index -1 - i refers to number i of the constant."""
    constant, size = node.arrays.get("constant"), math.prod(ins[0])
    fixed = 0 if constant is None else constant.size
    if "index" in node.arrays:
        index = node.arrays["index"]
        return index.dtype == np.int32 and index.size > 0 and index.min() >= -fixed and index.max() < size
    nests = node.arrays.get("nests"), node.arrays.get("constant_nests")
    return all(
        rows is None or (rows.dtype == np.int64 and strided.sound(rows, n, math.prod(out)))
        for rows, n in zip(nests, (size, fixed))
    )


def _gather_arrays(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    arrays = node.arrays
    fixed = {"constant": Array(arrays["constant"].shape)} if "constant" in arrays else {}
    if "index" in arrays:
        return {"index": Array(out, np.int32), **fixed}
    rows = ["nests", *(["constant_nests"] if fixed else [])]
    return {**{name: Array(arrays[name].shape if name in arrays else (), np.int64) for name in rows}, **fixed}


def _concat(node: Node, ins: list[Shape], out: Shape) -> bool:
    axis = node.attrs["axis"]
    if axis >= len(out) or any(len(shape) != len(out) for shape in ins):
        return False
    rest = out[:axis] + out[axis + 1 :]
    return sum(shape[axis] for shape in ins) == out[axis] and all(s[:axis] + s[axis + 1 :] == rest for s in ins)


def _bias(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    return {"bias": Array(node.kernel.shape[:1])}


def _constant(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    """A constant instead of a second value; of size 1 along the axes where it is repeated."""
    if len(ins) > 1:
        return {}
    constant = node.arrays.get("constant")
    if constant is None or constant.ndim != len(out) or any(n not in (1, m) for n, m in zip(constant.shape, out)):
        return {"constant": Array(out)}
    return {"constant": Array(constant.shape)}


def _scale_and_shift(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    channels = out[:1] if len(out) == 3 else out[-1:]
    return {"weight": Array(channels), "bias": Array(channels)}


OPERATORS: dict[str, Operator] = {
    "conv": Operator((1, 2), _conv, {**_WINDOW, "groups": integer(1), **_ACTIVATION}, _bias, 4, _PARAMETERS),
    "linear": Operator((1, 2), _linear, _ACTIVATION, _bias, 2, _PARAMETERS),
    "pool": Operator(
        (1, 1), _pool, {**_WINDOW, "kernel": integers(2, 1), "average": integer(0, 1), "count_pad": integer(0, 1)}
    ),
    **dict.fromkeys(
        OPERATIONS, Operator((1, 2), _binary, _ACTIVATION, _constant, 0, {**_PARAMETERS, "broadcast": sizes(3)})
    ),
    "activation": Operator((1, 1), _same, _ACTIVATION, optional=_PARAMETERS),
    "layernorm": Operator(
        (1, 1), lambda node, ins, out: len(out) in (2, 3) and ins[0] == out, {"eps": number(0)}, _scale_and_shift
    ),
    "softmax": Operator(
        (1, 1),
        lambda node, ins, out: (
            0 < len(out) <= 2
            and ins[0] == out
            and out[-1] % node.attrs.get("groups", 1) == 0
            and (len(out) == 2 or node.attrs.get("groups", 1) == 1)
        ),
        optional={"groups": integer(1), "safe": integer(0, 1)},
    ),
    "product": Operator(
        (2, 2), _product, {"a": integers(10), "b": integers(10), "sizes": integers(5, 1), "stacked": integer(0, 1)}
    ),
    "attention": Operator(
        (3, 4),
        _attention,
        {**{name: integers(10) for name in "qkv"}, "sizes": integers(6, 1), "stacked": integer(0, 1)},
        _attention_arrays,
        optional={"safe": integer(0, 1)},
    ),
    "mean": Operator((1, 1), _mean),
    "gather": Operator((1, 1), _gather, arrays=_gather_arrays),
    "concat": Operator((1, _MANY), _concat, {"axis": integer(0, 8)}),
}
