"""Loads the kernels: their parameters as structures, and a program of operators that runs without the GIL."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from . import build

LANES = 8
VERSION = 6  # of the kernels' interface and numerics; part of the key of cached choices
ACTIVATIONS = (
    "none", "relu", "relu6", "hardswish", "gelu", "sigmoid", "silu", "hardsigmoid", "gelu_tanh", "tanh", "leaky_relu",
    "elu", "mish", "softplus", "clamp", "exp", "sqrt", "abs",
)  # fmt: skip
OPERATIONS = ("add", "mul", "sub", "rsub", "div", "rdiv", "maximum", "minimum", "prelu")


class View(Structure):
    _fields_ = [("at", c_int64), ("slab", c_int64), ("chan", c_int64)]


class Active(Structure):
    _fields_ = [("kind", c_int64), ("first", c_double), ("second", c_double)]

    @classmethod
    def of(cls, attrs: dict[str, Any]) -> Active:
        """The activation that a node's attributes name, with its two parameters."""
        return cls(ACTIVATIONS.index(attrs["activation"]), *attrs.get("parameters", (0.0, 0.0)))


def _fields(text: str) -> list[tuple[str, Any]]:
    """`v:` views, `a:` activations, `p:` pointers, `d:` doubles; the rest are integers."""
    kinds = {"v": View, "a": Active, "p": c_void_p, "d": c_double}
    return [(w[2:], kinds[w[0]]) if w[1:2] == ":" else (w, c_int64) for w in text.split()]


class Conv(Structure):
    _fields_ = _fields(
        "v:inp v:out v:res step slabs rows channels a:activation width height groups blocks p:values p:bias p:offsets "
        "p:starts p:base p:splits"
    )


class Planes(Structure):
    _fields_ = _fields(
        "v:inp plain channels height width at slab chan slabs rows taps phases stride_x stride_y p:x_first p:y_first "
        "skip d:fill"
    )


class Pool(Structure):
    _fields_ = [("planes", Planes), *_fields("v:out rows count average p:offsets p:scale")]


class Window(Structure):
    _fields_ = _fields(
        "v:inp v:out channels height width out_height out_width kernel_y kernel_x stride_y stride_x pad_y pad_x "
        "dilation_y dilation_x average count_pad"
    )


class Binary(Structure):
    _fields_ = _fields("v:a v:b v:out b_row slabs channels rows operation a:activation p:constant unary")


class Norm(Structure):
    _fields_ = _fields("v:inp v:out slabs channels rows p:weight p:bias d:eps")


class Softmax(Structure):
    _fields_ = _fields("v:inp v:out channels rows groups flat")


class Operand(Structure):
    _fields_ = _fields("at group head row depth")


class Product(Structure):
    _fields_ = [(name, Operand) for name in ("a", "b", "out")]
    _fields_ += _fields("groups heads rows columns depth d:scale")


class Attention(Structure):
    _fields_ = [(name, Operand) for name in ("q", "k", "v", "out", "bias")]
    _fields_ += _fields("groups heads dim value_dim tokens keys scale_group scale_head p:scale p:constant")


class Mean(Structure):
    _fields_ = _fields("v:inp at out_chan slabs channels rows width images")


class Linear(Structure):
    _fields_ = _fields("at out res inputs outputs a:activation p:values p:bias p:columns p:starts")


class Gather(Structure):
    _fields_ = _fields("at out count move p:source p:target p:constant")


class Border(Structure):
    _fields_ = _fields("at slabs channels rows top bottom left right")


class Move(Structure):
    _fields_ = _fields("at out count p:nests p:constant")


KINDS: tuple[type[Structure], ...] = (
    Conv, Planes, Pool, Window, Binary, Norm, Softmax, Attention, Mean, Linear, Gather, Border, Move, Product,
)  # fmt: skip


class Copy(Structure):
    _fields_ = _fields("p:data at count")


class Array(Structure):
    _fields_ = _fields("p:data bytes")


class Program:
    """Operators in order over one arena. Arrays given with an operator live as long as the program."""

    def __init__(self, variant: str, threads: int, arena: int, scratch: int) -> None:
        self._lib = library()
        self._handle = self._lib.rp_new(variant.encode(), threads, arena, scratch)
        if not self._handle:
            raise RuntimeError(f"no program for {variant!r} with {threads} threads: choose one of {variants()}")
        self._arrays: list[np.ndarray] = []
        self.size = 0

    def add(self, params: Structure, tasks: int, arrays: Sequence[np.ndarray] = ()) -> int:
        """Add an operator; raises ValueError if it would leave the arena, or the arrays, which it points to."""
        name = type(params).__name__
        if not all(array.flags.c_contiguous for array in arrays):
            raise ValueError(f"the operator {name} has an array that does not lie in one piece")
        given = (Array * len(arrays))(*(Array(array.ctypes.data, array.nbytes) for array in arrays))
        kind = KINDS.index(type(params))
        wrong = self._lib.rp_add(self._handle, kind, ctypes.byref(params), tasks, given, len(arrays))
        if wrong:
            raise ValueError(f"the operator {name} would use {wrong.decode()}")
        self._arrays.extend(arrays)
        self.size += 1
        return self.size - 1

    def run(
        self, inputs: Sequence[tuple[int, int, int]], outputs: Sequence[tuple[int, int, int]],
        seconds: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Each input and output is (address, place in the arena, floats); `seconds` gains each operator's time."""
        ins = (Copy * len(inputs))(*(Copy(*c) for c in inputs))
        outs = (Copy * len(outputs))(*(Copy(*c) for c in outputs))
        spent = None if seconds is None else seconds.ctypes.data
        _ran(self._lib.rp_run(self._handle, ins, len(inputs), outs, len(outputs), spent))

    def run_groups(
        self, inputs: Sequence[tuple[int, int, int]], outputs: Sequence[tuple[int, int, int]], groups: int, workers: int
    ) -> None:
        """Several groups of images, data of the next right after the last's, each group run by one thread."""
        ins = (Copy * len(inputs))(*(Copy(*c) for c in inputs))
        outs = (Copy * len(outputs))(*(Copy(*c) for c in outputs))
        _ran(self._lib.rp_run_groups(self._handle, ins, len(inputs), outs, len(outputs), groups, workers))

    def time(self, index: int, repeats: int) -> float:
        """Least seconds of one operator over some repeats."""
        return float(self._lib.rp_time(self._handle, index, repeats))

    def arrays(self) -> dict[int, int]:
        """Bytes of each array it holds, by address."""
        return {array.ctypes.data: array.nbytes for array in self._arrays}

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.rp_free(self._handle)


def _ran(code: int) -> None:
    if code == 1:
        raise MemoryError("there is not enough memory for the activations")
    if code:
        raise ValueError("an input or output does not fit the place the program has for it")


def cache_folder() -> Path:
    """Where built kernels and measured choices are kept."""
    base = os.environ.get("RANKPRUNE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rankprune"
    )
    return Path(base)


@functools.cache
def library() -> Any:
    """The kernels: beside the package if they were built with it, else built once into the cache folder."""
    path = build.find(build.SOURCES.parent) or build.find_or_build(cache_folder() / "kernels")
    return bind(path)


def bind(path: Path) -> Any:
    """Load a library and declare its functions."""
    lib = ctypes.CDLL(str(path))
    lib.rp_variant.restype, lib.rp_variant.argtypes = c_char_p, [c_int]
    lib.rp_params_size.restype, lib.rp_params_size.argtypes = c_int64, [c_int64]
    lib.rp_new.restype, lib.rp_new.argtypes = c_void_p, [c_char_p, c_int64, c_int64, c_int64]
    lib.rp_add.restype = c_char_p
    lib.rp_add.argtypes = [c_void_p, c_int64, c_void_p, c_int64, POINTER(Array), c_int64]
    lib.rp_run.restype = c_int
    lib.rp_run.argtypes = [c_void_p, POINTER(Copy), c_int64, POINTER(Copy), c_int64, c_void_p]
    lib.rp_run_groups.restype = c_int
    lib.rp_run_groups.argtypes = [c_void_p, POINTER(Copy), c_int64, POINTER(Copy), c_int64, c_int64, c_int64]
    lib.rp_time.restype, lib.rp_time.argtypes = c_double, [c_void_p, c_int64, c_int64]
    lib.rp_peak.restype, lib.rp_peak.argtypes = c_double, [c_char_p, c_int64]
    lib.rp_free.restype, lib.rp_free.argtypes = None, [c_void_p]
    sizes = [lib.rp_params_size(kind) for kind in range(len(KINDS))]
    if lib.rp_version() != VERSION or sizes != [ctypes.sizeof(kind) for kind in KINDS]:
        raise RuntimeError(f"{path} does not fit this version of the package: remove it, it is built again")
    return lib


def variants() -> list[str]:
    """Instruction sets this CPU has, best first."""
    lib = library()
    found: list[str] = []
    while name := lib.rp_variant(len(found)):
        found.append(name.decode())
    return found


def peak(variant: str, threads: int) -> float:
    """Measured multiply-add peak, GFLOP/s."""
    return float(library().rp_peak(variant.encode(), threads))
