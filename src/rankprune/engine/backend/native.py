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

from rankprune.engine.graph.strided import AXES
from rankprune.engine.graph.target import ACTIVATIONS, LANES, OPERATIONS

from . import build

VERSION = 8  # of the kernels' interface and numerics; part of the key of cached choices
MOVES = ("floats", "rows", "into_lanes", "out_of_lanes")  # of a gather
INNER = ("copy", "transpose", "scalar")  # loops of a move


def fields(text: str) -> list[tuple[str, Any]]:
    """The fields of a structure, from the text that the kernels give of theirs.

    Args:
        text: Types and names as `rp_fields` in api.h has them: `"View in, out; int64_t rows; double eps;"`.

    Returns:
        Name and ctypes type of each field, in order; every type that is not known by name is a pointer.
    """
    known: dict[str, Any] = {"int64_t": c_int64, "double": c_double}
    known |= {made.__name__: made for made in Params.__subclasses__()}
    groups = (group.split(maxsplit=1) for group in text.split(";") if group.strip())
    return [(name.strip(), known.get(kind, c_void_p)) for kind, names in groups for name in names.split(",")]


class Params(Structure):
    """Parameters of an operator, or a part of them.

    A subclass of the name of an operator in api.h stands beside the function that fills it, in `lower_*.py`. When it is
    first used, its fields are compared with the library's, by name, order and type.
    """


class View(Params):
    _fields_ = fields("int64_t at, slab, chan")


class Active(Params):
    _fields_ = fields("int64_t kind; double first, second")

    @classmethod
    def of(cls, attrs: dict[str, Any]) -> Active:
        """The activation that a node's attributes name, with its two parameters."""
        return cls(ACTIVATIONS.index(attrs["activation"]), *attrs.get("parameters", (0.0, 0.0)))


class Copy(Structure):
    _fields_ = fields("void* data; int64_t at, count")


class Array(Structure):
    _fields_ = fields("void* data; int64_t bytes")


class Program:
    """Operators in order over one arena. Arrays given with an operator live as long as the program."""

    def __init__(self, variant: str, threads: int, arena: int, scratch: int) -> None:
        self._lib = library()
        self._handle = self._lib.rp_new(variant.encode(), threads, arena, scratch)
        if not self._handle:
            raise RuntimeError(f"no program for {variant!r} with {threads} threads: choose one of {variants()}")
        self._arrays: list[np.ndarray] = []
        self.size = 0

    def add(self, params: Params, tasks: int, arrays: Sequence[np.ndarray] = ()) -> int:
        """Add an operator; raises ValueError if it would leave the arena, or the arrays, which it points to."""
        name = type(params).__name__
        if not all(array.flags.c_contiguous for array in arrays):
            raise ValueError(f"the operator {name} has an array that does not lie in one piece")
        given = (Array * len(arrays))(*(Array(array.ctypes.data, array.nbytes) for array in arrays))
        kind = number_of(type(params))
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
    lib.rp_fields.restype, lib.rp_fields.argtypes = c_char_p, [c_int64]
    lib.rp_names.restype, lib.rp_names.argtypes = c_char_p, [c_char_p]
    lib.rp_constant.restype, lib.rp_constant.argtypes = c_int64, [c_char_p]
    lib.rp_lanes.restype, lib.rp_lanes.argtypes = c_int64, [c_char_p]
    lib.rp_new.restype, lib.rp_new.argtypes = c_void_p, [c_char_p, c_int64, c_int64, c_int64]
    lib.rp_add.restype = c_char_p
    lib.rp_add.argtypes = [c_void_p, c_int64, c_void_p, c_int64, POINTER(Array), c_int64]
    lib.rp_run.restype = c_int
    lib.rp_run.argtypes = [c_void_p, POINTER(Copy), c_int64, POINTER(Copy), c_int64, c_void_p]
    lib.rp_run_groups.restype = c_int
    lib.rp_run_groups.argtypes = [c_void_p, POINTER(Copy), c_int64, POINTER(Copy), c_int64, c_int64, c_int64]
    lib.rp_time.restype, lib.rp_time.argtypes = c_double, [c_void_p, c_int64, c_int64]
    lib.rp_peak.restype, lib.rp_peak.argtypes = c_double, [c_char_p, c_int64]
    lib.rp_round_trip.restype, lib.rp_round_trip.argtypes = c_double, [c_int64]
    lib.rp_free.restype, lib.rp_free.argtypes = None, [c_void_p]
    numbers = {"kLanes": LANES, "kAxes": AXES}
    names = {"activations": ACTIVATIONS, "operations": OPERATIONS, "moves": MOVES, "inner": INNER}
    if (
        lib.rp_version() != VERSION
        or any(lib.rp_constant(name.encode()) != value for name, value in numbers.items())
        or any(tuple(lib.rp_names(name.encode()).decode().split()) != known for name, known in names.items())
    ):
        raise RuntimeError(f"{path} does not fit this version of the package: remove it, it is built again")
    return lib


def operators() -> dict[str, str]:
    """The operators of the library in order, each with the text of its fields."""
    lib = library()
    found: dict[str, str] = {}
    while text := lib.rp_fields(len(found)):
        name, _, rest = text.decode().partition(":")
        found[name] = rest
    return found


@functools.cache
def number_of(params: type[Params]) -> int:
    """The number of an operator, once its parameters have been found to be the library's.

    Raises:
        RuntimeError: The library has no operator of this name, or it has other fields, or in another order.
    """
    known = operators()
    theirs = fields(known.get(params.__name__, ""))
    if theirs != params._fields_:
        ours, named = (", ".join(field[0] for field in each) for each in (params._fields_, theirs))
        raise RuntimeError(
            f"the kernels' operator {params.__name__} has the fields ({named}), not ({ours}): build them again"
        )
    return list(known).index(params.__name__)


@functools.cache
def kernel_constant(name: str) -> int:
    """A number that api.h sets, such as the rows of a task: `kernel_constant("kBinaryRows")`."""
    value = int(library().rp_constant(name.encode()))
    if value < 0:
        raise RuntimeError(f"the kernels have no constant {name}: build them again")
    return value


def variants() -> list[str]:
    """Instruction sets this CPU has, best first."""
    lib = library()
    found: list[str] = []
    while name := lib.rp_variant(len(found)):
        found.append(name.decode())
    return found


def lanes(variant: str) -> int:
    """Floats of the widest vectors of an instruction set."""
    return int(library().rp_lanes(variant.encode()))


def round_trip() -> float:
    """Seconds that a cache line takes to another thread and back: about 100 ns under one L3, over 400 ns across two."""
    return float(library().rp_round_trip(20000))


def peak(variant: str, threads: int) -> float:
    """Measured multiply-add peak, GFLOP/s."""
    return float(library().rp_peak(variant.encode(), threads))
