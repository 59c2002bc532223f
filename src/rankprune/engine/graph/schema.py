"""How operators are declared: inputs, attributes, arrays, weight, and the relation of their shapes.

`operator_table.py` declares every operator of the kernels. A graph is checked against it before it is lowered
(`validate.py`), so that lowering finds exactly the declared attributes, each of its type and within its range.
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
MOST = 1 << 20  # maximum of a stride, a padding, a number of heads, ...
Attribute = Callable[[Any], bool]  # whether a value is allowed for the attribute


class Unsound(ValueError):
    """A graph whose parts do not fit together."""


def integer(low: int = 0, high: int = MOST) -> Attribute:
    """Declare an integer.

    Args:
        low: Minimum.
        high: Maximum.

    Returns:
        The attribute.
    """
    return lambda value: type(value) is int and low <= value <= high


def integers(count: int, low: int = 0, high: int = MOST) -> Attribute:
    """Declare a list of integers.

    Args:
        count: Length of the list.
        low: Minimum.
        high: Maximum.

    Returns:
        The attribute.
    """
    one = integer(low, high)
    return lambda value: type(value) is list and len(value) == count and all(map(one, value))


def number(low: float = -math.inf) -> Attribute:
    """Declare a number that a float32 can hold.

    Args:
        low: Minimum.

    Returns:
        The attribute.
    """
    return lambda value: type(value) in (int, float) and max(low, -_FLOAT) <= value <= _FLOAT


def numbers(count: int) -> Attribute:
    """Declare a list of numbers that a float32 can hold.

    Args:
        count: Length of the list.

    Returns:
        The attribute.
    """
    one = number()
    return lambda value: type(value) is list and len(value) == count and all(map(one, value))


def sizes(most: int, low: int = 1, high: int = MOST) -> Attribute:
    """Declare a list of integers of variable length.

    Args:
        most: Maximum length of the list.
        low: Minimum.
        high: Maximum.

    Returns:
        The attribute.
    """
    one = integer(low, high)
    return lambda value: type(value) is list and len(value) <= most and all(map(one, value))


def word(known: Sequence[str]) -> Attribute:
    """Declare one of some strings.

    Args:
        known: The strings.

    Returns:
        The attribute.
    """
    return lambda value: type(value) is str and value in known


@dataclass(frozen=True)
class Array:
    """An array of an operator.

    Attributes:
        shape: Its exact shape.
        dtype: Its exact type.
        needed: Whether it must be present.
    """

    shape: Shape
    dtype: Any = np.float32
    needed: bool = True


def _no_arrays(node: Node, ins: list[Shape], out: Shape) -> dict[str, Array]:
    return {}


@dataclass(frozen=True)
class Operator:
    """The declaration of an operator. A node with anything else is refused.

    Attributes:
        inputs: Minimum and maximum number of values it reads.
        fits: Whether the shapes of inputs and result fit the attributes and the weight.
        attrs: The required attributes by name.
        arrays: Returns the declared arrays of a node whose shapes fit; their indices are checked by `fits`.
        weight: Dimensions of the weight; 0 if it has none.
        optional: Attributes that may be missing.
    """

    inputs: tuple[int, int]
    fits: Callable[[Node, list[Shape], Shape], bool]
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    arrays: Callable[[Node, list[Shape], Shape], dict[str, Array]] = _no_arrays
    weight: int = 0
    optional: Mapping[str, Attribute] = field(default_factory=dict)

    def check(self, node: Node, ins: list[Shape], out: Shape) -> None:
        """Check a node.

        Args:
            node: The node.
            ins: Shapes of its inputs.
            out: Shape of its result.

        Raises:
            Unsound: The node does not fit the declaration; the message is the end of a sentence.
        """
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


def _same_names(kind: str, names: Any, known: Any, needed: Any) -> None:
    if odd := sorted(map(str, names - known)):
        raise Unsound(f"has an unknown {kind} {shorten(odd[0])}")
    if missing := sorted(set(needed) - set(names)):
        raise Unsound(f"lacks the {kind} {missing[0]}")
