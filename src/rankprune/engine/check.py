"""Whether a graph from outside is sound: every shape, count and index follows from what stands before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .graph import Graph, Node, Shape
from .native import ACTIVATIONS

LARGEST = 1 << 31  # floats of one value
_ACTIVE = ("conv", "linear", "add", "mul", "activation")


class Unsound(ValueError):
    """A graph whose parts do not fit each other."""


def check(graph: Graph) -> None:
    """Raises a ValueError that names the operator."""
    known: set[int] = set()
    for shape in graph.shapes:
        _need(all(n > 0 for n in shape) and math.prod(shape) < LARGEST // 64, f"a value of shape {shape}")
    for value in graph.inputs:
        _need(value < len(graph.shapes) and value not in known, f"input {value}")
        known.add(value)
    _need(bool(graph.inputs) and bool(graph.outputs), "no inputs or no outputs")
    for node in graph.nodes:
        where = f"operator {node.op} {node.name}".strip()
        _need(node.op in _RULES, f"unknown {where}")
        _need(all(value in known for value in node.inputs), f"{where} reads what is not there yet")
        _need(node.output < len(graph.shapes) and node.output not in known, f"{where} writes value {node.output}")
        if node.op in _ACTIVE:
            _need(node.attrs["activation"] in ACTIVATIONS, f"{where} with activation {node.attrs['activation']}")
        _need(_sound_weight(node), f"{where} has a weight that does not fit its positions")
        ins, out = [graph.shapes[v] for v in node.inputs], graph.shapes[node.output]
        _need(_RULES[node.op](node, ins, out), f"{where} of {ins} to {out}")
        known.add(node.output)
    _need(all(value in known for value in graph.outputs), "an output that is not there")


def _need(sound: bool, what: str) -> None:
    if not sound:
        raise Unsound(f"wrong: {what}")


def _ints(node: Node, name: str, low: int, high: int = 1 << 20) -> list[int]:
    values = node.attrs[name]
    _need(isinstance(values, list) and len(values) == 2, f"{name} of {node.op}")
    _need(all(type(v) is int and low <= v <= high for v in values), f"{name} of {node.op}")
    return values


def _int(node: Node, name: str, low: int = 0, high: int = 1 << 20) -> int:
    value = node.attrs[name]
    _need(type(value) is int and low <= value <= high, f"{name} of {node.op}")
    return int(value)


def _number(node: Node, name: str) -> float:
    value = node.attrs[name]
    _need(type(value) in (int, float) and math.isfinite(value), f"{name} of {node.op}")
    return float(value)


def _sound_weight(node: Node) -> bool:
    weight = node.weight
    if weight is None:
        return node.op not in ("conv", "linear")
    if weight.values.ndim != 1 or math.prod(weight.shape) >= LARGEST or not all(weight.shape):
        return False
    if weight.position is None:
        return bool(weight.values.size == weight.size)
    position = weight.position
    if position.shape != weight.values.shape:
        return False
    return not position.size or bool(position[0] >= 0 and position[-1] < weight.size and (np.diff(position) > 0).all())


def _length(node: Node, name: str, size: int) -> bool:
    return node.arrays[name].shape == (size,)


def _same(ins: list[Shape], out: Shape) -> bool:
    return all(shape == out for shape in ins)


def _conv(node: Node, ins: list[Shape], out: Shape) -> bool:
    shape, groups = node.kernel.shape, _int(node, "groups", 1)
    if len(shape) != 4 or len(ins) not in (1, 2) or len(ins[0]) != 3 or len(out) != 3 or ins[1:] not in ([], [out]):
        return False
    fits = shape[0] == out[0] and shape[0] % groups == 0 and shape[1] * groups == ins[0][0]
    return fits and _windowed(node, shape[2:], ins[0], out, False) and _length(node, "bias", out[0])


def _windowed(node: Node, kernel: Any, source: Shape, out: Shape, ceil: bool) -> bool:
    stride, pad, spread = _ints(node, "stride", 1), _ints(node, "padding", 0), _ints(node, "dilation", 1)
    for axis in range(2):
        room = source[1 + axis] + 2 * pad[axis] - spread[axis] * (kernel[axis] - 1) - 1
        sizes = [room // stride[axis] + 1] + ([-(-room // stride[axis]) + 1] if ceil else [])
        if room < 0 or out[1 + axis] not in sizes:
            return False
    return True


def _pool(node: Node, ins: list[Shape], out: Shape) -> bool:
    kernel = _ints(node, "kernel", 1)
    _int(node, "average", 0, 1), _int(node, "count_pad", 0, 1)
    fits = len(ins) == 1 and len(ins[0]) == 3 and len(out) == 3 and ins[0][0] == out[0]
    small = all(2 * p <= k for p, k in zip(_ints(node, "padding", 0), kernel))
    return fits and small and _windowed(node, kernel, ins[0], out, True)


def _linear(node: Node, ins: list[Shape], out: Shape) -> bool:
    shape = node.kernel.shape
    if len(shape) != 2 or len(ins) not in (1, 2) or ins[1:] not in ([], [out]) or len(ins[0]) not in (1, 2):
        return False
    return (*ins[0][:-1], shape[0]) == out and ins[0][-1] == shape[1] and _length(node, "bias", shape[0])


def _binary(node: Node, ins: list[Shape], out: Shape) -> bool:
    if len(ins) == 1:
        return ins[0] == out == node.arrays["constant"].shape
    return len(ins) == 2 and ins[0] == out and (ins[1] == out or (len(out) == 3 and ins[1] == out[:1]))


def _norm(node: Node, ins: list[Shape], out: Shape) -> bool:
    _need(_number(node, "eps") >= 0, "eps of layernorm")
    both = all(_length(node, name, out[-1]) for name in ("weight", "bias"))
    return len(ins) == 1 and len(out) == 2 and _same(ins, out) and both


def _softmax(node: Node, ins: list[Shape], out: Shape) -> bool:
    return len(ins) == 1 and _same(ins, out) and len(out) <= 2


def _attention(node: Node, ins: list[Shape], out: Shape) -> bool:
    if len(ins) != 3 or any(len(shape) != 2 for shape in (*ins, out)):
        return False
    heads, dim, value_dim = (_int(node, name, 1) for name in ("heads", "dim", "value_dim"))
    _number(node, "scale")
    for letter, shape, size in zip("qkv", ins, (dim, dim, value_dim)):
        if _int(node, f"{letter}_at") + (heads - 1) * _int(node, f"{letter}_head") + size > shape[1]:
            return False
    return out == (ins[0][0], heads * value_dim) and ins[1][0] == ins[2][0]


def _mean(node: Node, ins: list[Shape], out: Shape) -> bool:
    if len(ins) != 1 or len(ins[0]) not in (2, 3):
        return False
    return out == ((ins[0][0],) if len(ins[0]) == 3 else (ins[0][1],))


def _gather(node: Node, ins: list[Shape], out: Shape) -> bool:
    index = node.arrays["index"]
    if len(ins) != 1 or index.shape != out or index.min() < -1 or index.max() >= math.prod(ins[0]):
        return False
    return bool(index.min() >= 0) or node.arrays["constant"].shape == out


def _concat(node: Node, ins: list[Shape], out: Shape) -> bool:
    axis = _int(node, "axis", 0, len(out) - 1)
    if not ins or any(len(shape) != len(out) for shape in ins) or sum(shape[axis] for shape in ins) != out[axis]:
        return False
    return all(shape[:axis] + shape[axis + 1 :] == out[:axis] + out[axis + 1 :] for shape in ins)


_RULES: dict[str, Callable[[Node, list[Shape], Shape], bool]] = {
    "conv": _conv, "pool": _pool, "linear": _linear, "add": _binary, "mul": _binary, "layernorm": _norm,
    "activation": lambda node, ins, out: len(ins) == 1 and ins[0] == out, "softmax": _softmax, "attention": _attention,
    "mean": _mean, "gather": _gather, "concat": _concat,
}  # fmt: skip
