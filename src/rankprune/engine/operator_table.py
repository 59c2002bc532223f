"""Every operator the kernels have, declared: see `schema.py`."""

from __future__ import annotations

import math

import numpy as np

from .graph import Node, Shape
from .native import ACTIVATIONS, OPERATIONS
from .schema import Array, Operator, integer, integers, number, numbers, sizes, word

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
    """Whether a tensor of shape `small` is repeated along the axes where it has size 1, and only there."""
    if len(small) != len(out) or (len(out) > 3 and small != out):
        return False
    return all(n in (1, size) for n, size in zip(small, out))


def _attention(node: Node, ins: list[Shape], out: Shape) -> bool:
    if any(len(shape) != 2 for shape in (*ins, out)):
        return False
    a = node.attrs
    for letter, shape, size in zip("qkv", ins, (a["dim"], a["dim"], a["value_dim"])):
        if a[f"{letter}_at"] + (a["heads"] - 1) * a[f"{letter}_head"] + size > shape[1]:
            return False
    return out == (ins[0][0], a["heads"] * a["value_dim"]) and ins[1][0] == ins[2][0]


def _mean(node: Node, ins: list[Shape], out: Shape) -> bool:
    return len(ins[0]) in (2, 3) and out == (ins[0][:1] if len(ins[0]) == 3 else ins[0][1:])


def _gather(node: Node, ins: list[Shape], out: Shape) -> bool:
    index = node.arrays.get("index")
    return index is not None and index.size > 0 and index.min() >= -1 and index.max() < math.prod(ins[0])


def _gather_arrays(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    """A constant is needed where an index is -1."""
    return {"index": Array(out, np.int32), "constant": Array(out, needed=bool(node.arrays["index"].min() < 0))}


def _concat(node: Node, ins: list[Shape], out: Shape) -> bool:
    axis = node.attrs["axis"]
    if axis >= len(out) or any(len(shape) != len(out) for shape in ins):
        return False
    rest = out[:axis] + out[axis + 1 :]
    return sum(shape[axis] for shape in ins) == out[axis] and all(s[:axis] + s[axis + 1 :] == rest for s in ins)


def _bias(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    return {"bias": Array(node.kernel.shape[:1])}


def _constant(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    """Instead of a second value; of size 1 along the axes where it is repeated."""
    if len(ins) > 1:
        return {}
    found = node.arrays.get("constant")
    repeats = found is not None and found.ndim == len(out) and all(n in (1, m) for n, m in zip(found.shape, out))
    return {"constant": Array(found.shape if found is not None and repeats else out)}


def _scale_and_shift(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    return {"weight": Array(out[-1:]), "bias": Array(out[-1:])}


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
        (1, 1), lambda node, ins, out: len(out) == 2 and ins[0] == out, {"eps": number(0)}, _scale_and_shift
    ),
    "softmax": Operator((1, 1), lambda node, ins, out: 0 < len(out) <= 2 and ins[0] == out),
    "attention": Operator(
        (3, 3),
        _attention,
        {
            **{name: integer(1) for name in ("heads", "dim", "value_dim")},
            **{f"{letter}_{kind}": integer() for letter in "qkv" for kind in ("at", "head")},
            "scale": number(),
        },
    ),
    "mean": Operator((1, 1), _mean),
    "gather": Operator((1, 1), _gather, arrays=_gather_arrays),
    "concat": Operator((1, _MANY), _concat, {"axis": integer(0, 8)}),
}
