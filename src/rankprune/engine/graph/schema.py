"""How an operator of a program is declared: inputs, attributes, arrays, weight, and how their shapes belong together.

`operator_table.py` declares every operator the kernels have. A graph is checked against it before a program is made of
it (`check.py`), so that lowering finds exactly the declared attributes, each of its type and within its range, and
nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankprune._util import shorten

from .graph import Node, Shape

_FLOAT = float(np.finfo(np.float32).max)
MOST = 1 << 20  # of a stride, a padding, a number of heads, ...
Attribute = Callable[[Any], bool]  # whether a value is one that the attribute may have


class Unsound(ValueError):
    """A graph whose parts do not fit each other."""


def integer(low: int = 0, high: int = MOST) -> Attribute:
    return lambda value: type(value) is int and low <= value <= high


def integers(count: int, low: int = 0, high: int = MOST) -> Attribute:
    """A list of `count` integers."""
    one = integer(low, high)
    return lambda value: type(value) is list and len(value) == count and all(map(one, value))


def number(low: float = -math.inf) -> Attribute:
    """A number that a float32 can hold."""
    return lambda value: type(value) in (int, float) and max(low, -_FLOAT) <= value <= _FLOAT


def numbers(count: int) -> Attribute:
    """A list of `count` such numbers."""
    one = number()
    return lambda value: type(value) is list and len(value) == count and all(map(one, value))


def sizes(most: int, low: int = 1, high: int = MOST) -> Attribute:
    """A list of at most `most` integers."""
    one = integer(low, high)
    return lambda value: type(value) is list and len(value) <= most and all(map(one, value))


def word(known: Sequence[str]) -> Attribute:
    return lambda value: type(value) is str and value in known


@dataclass(frozen=True)
class Array:
    """An array of an operator: its exact shape and type. Without `needed` it may be absent."""

    shape: Shape
    dtype: Any = np.float32
    needed: bool = True


def _no_arrays(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    return {}


@dataclass(frozen=True)
class Operator:
    """What an operator has; whatever else a node carries is refused.

    Attributes:
        inputs: The least and the largest number of values it reads.
        fits: Whether the shapes of the inputs and of the result follow from one another, the attributes and the weight.
        attrs: The attributes, all needed, by name.
        arrays: The arrays, given the node and its (fitting) shapes; indices are checked by `fits`.
        weight: Dimensions of the weight; 0: it has none.
        optional: Attributes that may be absent.
    """

    inputs: tuple[int, int]
    fits: Callable[[Node, list[Shape], Shape], bool]
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    arrays: Callable[[Node, list[Shape], Shape], dict[str, Array]] = _no_arrays
    weight: int = 0
    optional: Mapping[str, Attribute] = field(default_factory=dict)

    def check(self, node: Node, ins: list[Shape], out: Shape) -> None:
        """Raises Unsound with what is wrong."""
        if not self.inputs[0] <= len(ins) <= self.inputs[1]:
            raise Unsound(f"reads {len(ins)} values")
        known = {**self.attrs, **self.optional}
        _same_names("attribute", node.attrs.keys(), known.keys(), self.attrs.keys())
        for name, value in node.attrs.items():
            if not known[name](value):
                raise Unsound(f"has {name}={shorten(node.attrs[name])}")
        weight = node.weight
        if (0 if weight is None else len(weight.shape)) != self.weight:
            raise Unsound(f"has a weight of {0 if weight is None else len(weight.shape)} dimensions, not {self.weight}")
        if weight is not None and not weight.sound():
            raise Unsound("has a weight that does not fit its positions")
        if not self.fits(node, ins, out):
            raise Unsound(f"does not make {shorten(out)} of {shorten(ins)}")
        arrays = self.arrays(node, ins, out)
        _same_names("array", node.arrays.keys(), arrays.keys(), [n for n, a in arrays.items() if a.needed])
        for name, array in node.arrays.items():
            if array.shape != arrays[name].shape or array.dtype != arrays[name].dtype:
                raise Unsound(f"has an array {name} of {array.dtype} {array.shape}")


def _same_names(kind: str, given: Any, known: Any, needed: Any) -> None:
    if odd := sorted(map(str, given - known)):
        raise Unsound(f"has an unknown {kind} {shorten(odd[0])}")
    if missing := sorted(set(needed) - set(given)):
        raise Unsound(f"lacks the {kind} {missing[0]}")
