"""Loads the kernels: their parameters as ctypes structures, and programs that run without the GIL."""

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

VERSION = 11  # version of the kernels' interface and numerics; part of the key of cached choices
MOVES = ("floats", "rows", "into_lanes", "out_of_lanes")  # kinds of gathers
INNER = ("copy", "transpose", "scalar")  # kinds of inner loops of a move


def fields(text: str) -> list[tuple[str, Any]]:
    """Parse the fields of a structure.

    Args:
        text: Types and names as `rp_fields` in api.h has them: `"View in, out; int64_t rows; double eps;"`.

    Returns:
        Name and ctypes type of each field, in order; an unknown type is a pointer.
    """
    known: dict[str, Any] = {"int64_t": c_int64, "double": c_double}
    known |= {params.__name__: params for params in Params.__subclasses__()}
    groups = (group.split(maxsplit=1) for group in text.split(";") if group.strip())
    return [(name.strip(), known.get(kind, c_void_p)) for kind, names in groups for name in names.split(",")]


class Params(Structure):
    """Parameters of an operator, or a part of them.

    A subclass with the name of an operator in api.h is defined next to the function that fills it, in `lower_*.py`. Its
    fields are compared with the library's by name, order and type when it is first used.
    """


class View(Params):
    """Offset of a value, and its strides between slabs and channels."""

    _fields_ = fields("int64_t at, slab, chan")


class Active(Params):
    """An activation with its two parameters."""

    _fields_ = fields("int64_t kind; double first, second")

    @classmethod
    def of(cls, attrs: dict[str, Any]) -> Active:
        """Return the activation of a node.

        Args:
            attrs: The node's attributes.

        Returns:
            The activation.
        """
        return cls(ACTIVATIONS.index(attrs["activation"]), *attrs.get("parameters", (0.0, 0.0)))


class Copy(Structure):
    """An input or output of a program: address, offset in the arena, floats."""

    _fields_ = fields("void* data; int64_t at, count")


class Array(Structure):
    """A constant of an operator: address and bytes."""

    _fields_ = fields("void* data; int64_t bytes")


class Program:
    """Operators in order, over one arena. It keeps a reference to the arrays of its operators.

    Args:
        variant: The instruction set.
        threads: Number of threads.
        arena: Floats of the arena.
        scratch: Floats of scratch memory per thread.

    Raises:
        RuntimeError: There is no such variant.
    """

    def __init__(self, variant: str, threads: int, arena: int, scratch: int) -> None:
        self._lib = library()
        self._handle = self._lib.rp_new(variant.encode(), threads, arena, scratch)
        if not self._handle:
            raise RuntimeError(f"no program for {variant!r} with {threads} threads: choose one of {variants()}")
        self._arrays: list[np.ndarray] = []
        self.size = 0

    def add(self, params: Params, tasks: int, arrays: Sequence[np.ndarray] = ()) -> int:
        """Append an operator.

        Args:
            params: Its parameters.
            tasks: Number of parallel tasks.
            arrays: Constants that the parameters point to.

        Returns:
            Index of the operator.

        Raises:
            ValueError: It would access memory outside of the arena or of the arrays.
        """
        name = type(params).__name__
        if not all(array.flags.c_contiguous for array in arrays):
            raise ValueError(f"the operator {name} has an array that does not lie in one piece")
        table = (Array * len(arrays))(*(Array(array.ctypes.data, array.nbytes) for array in arrays))
        kind = number_of(type(params))
        wrong = self._lib.rp_add(self._handle, kind, ctypes.byref(params), tasks, table, len(arrays))
        if wrong:
            raise ValueError(f"the operator {name} would use {wrong.decode()}")
        self._arrays.extend(arrays)
        self.size += 1
        return self.size - 1

    def run(
        self, inputs: Sequence[tuple[int, int, int]], outputs: Sequence[tuple[int, int, int]],
        seconds: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Run the program once.

        Args:
            inputs: (address, offset in the arena, floats) of each input.
            outputs: The same of each output.
            seconds: Each operator's time is added to it.

        Raises:
            MemoryError: There is not enough memory for the arena.
            ValueError: An input or output does not fit.
        """
        ins = (Copy * len(inputs))(*(Copy(*c) for c in inputs))
        outs = (Copy * len(outputs))(*(Copy(*c) for c in outputs))
        spent = None if seconds is None else seconds.ctypes.data
        _ran(self._lib.rp_run(self._handle, ins, len(inputs), outs, len(outputs), spent))

    def run_groups(
        self, inputs: Sequence[tuple[int, int, int]], outputs: Sequence[tuple[int, int, int]], groups: int, workers: int
    ) -> None:
        """Run the program on several groups of images, one thread per group.

        Args:
            inputs: (address, offset in the arena, floats of a group) of each input; the groups are contiguous.
            outputs: The same of each output.
            groups: Number of groups.
            workers: Number of threads.

        Raises:
            MemoryError: There is not enough memory for the arenas.
            ValueError: An input or output does not fit.
        """
        ins = (Copy * len(inputs))(*(Copy(*c) for c in inputs))
        outs = (Copy * len(outputs))(*(Copy(*c) for c in outputs))
        _ran(self._lib.rp_run_groups(self._handle, ins, len(inputs), outs, len(outputs), groups, workers))

    def time(self, index: int, repeats: int, cold: bool) -> float:
        """Measure one operator.

        Args:
            index: Its index.
            repeats: Number of runs.
            cold: Its weights are removed from the caches before each run.

        Returns:
            Minimum seconds.
        """
        return float(self._lib.rp_time(self._handle, index, repeats, cold))

    def arrays(self) -> dict[int, int]:
        """Return the bytes of each array it holds, by address."""
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
    """Return the folder of built kernels and measured choices."""
    base = os.environ.get("RANKPRUNE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rankprune"
    )
    return Path(base)


@functools.cache
def library() -> Any:
    """Load the kernels: beside the package if they were built with it, otherwise built once into the cache folder."""
    path = build.find(build.SOURCES.parent) or build.find_or_build(cache_folder() / "kernels")
    return bind(path)


def bind(path: Path) -> Any:
    """Load a library and declare its functions.

    Args:
        path: The library.

    Returns:
        The library.

    Raises:
        RuntimeError: It belongs to another version of the package.
    """
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
    lib.rp_time.restype, lib.rp_time.argtypes = c_double, [c_void_p, c_int64, c_int64, c_int64]
    lib.rp_peak.restype, lib.rp_peak.argtypes = c_double, [c_char_p, c_int64]
    lib.rp_round_trip.restype, lib.rp_round_trip.argtypes = c_double, [c_int64]
    lib.rp_near.restype = c_int64
    lib.rp_near.argtypes = [c_char_p, c_int64, c_int64, POINTER(c_int64), c_int64, POINTER(c_int64)]
    lib.rp_free.restype, lib.rp_free.argtypes = None, [c_void_p]
    lib.rp_jit_new.restype, lib.rp_jit_new.argtypes = c_void_p, [c_void_p]
    lib.rp_jit_bytes.restype, lib.rp_jit_bytes.argtypes = c_int64, [c_void_p]
    lib.rp_jit_free.restype, lib.rp_jit_free.argtypes = None, [c_void_p]
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
    """Return the operators of the library in order, each with its fields as text."""
    lib = library()
    texts: dict[str, str] = {}
    while text := lib.rp_fields(len(texts)):
        name, _, rest = text.decode().partition(":")
        texts[name] = rest
    return texts


@functools.cache
def number_of(params: type[Params]) -> int:
    """Return the number of an operator, after comparing its parameters with the library's.

    Args:
        params: The class of its parameters.

    Returns:
        Its number.

    Raises:
        RuntimeError: The library has no such operator, or its fields differ.
    """
    known = operators()
    library_fields = fields(known.get(params.__name__, ""))
    if library_fields != params._fields_:
        ours, named = (", ".join(field[0] for field in each) for each in (params._fields_, library_fields))
        raise RuntimeError(
            f"the kernels' operator {params.__name__} has the fields ({named}), not ({ours}): build them again"
        )
    return list(known).index(params.__name__)


@functools.cache
def kernel_constant(name: str) -> int:
    """Return a constant of api.h, such as the rows per task: `kernel_constant("kBinaryRows")`.

    Args:
        name: Its name.

    Returns:
        Its value.

    Raises:
        RuntimeError: There is no such constant.
    """
    value = int(library().rp_constant(name.encode()))
    if value < 0:
        raise RuntimeError(f"the kernels have no constant {name}: build them again")
    return value


def variants() -> list[str]:
    """Return the instruction sets that this CPU supports, best first."""
    lib = library()
    names: list[str] = []
    while name := lib.rp_variant(len(names)):
        names.append(name.decode())
    return names


def lanes(variant: str) -> int:
    """Return the floats of the widest vectors of an instruction set.

    Args:
        variant: The instruction set.

    Returns:
        8 or 16.
    """
    return int(library().rp_lanes(variant.encode()))


def near_cpus(root: Path, cpu: int, threads: int, allowed: Sequence[int]) -> list[int]:
    """Return the CPUs on which the workers of a pool run.

    Args:
        root: The system's description of its CPUs, /sys/devices/system/cpu.
        cpu: The CPU of the caller.
        threads: Number of threads, the caller among them.
        allowed: CPUs that the caller may use.

    Returns:
        Those that share the caller's L3 cache; none if these are all, or not as many cores as there are threads.
    """
    found = (c_int64 * len(allowed))()
    size = library().rp_near(str(root).encode(), cpu, threads, (c_int64 * len(allowed))(*allowed), len(allowed), found)
    return list(found[:size])


def round_trip() -> float:
    """Measure how long a cache line takes to another core and back.

    Returns:
        Seconds: about 100 ns within one L3 cache, over 400 ns between two.
    """
    return float(library().rp_round_trip(20000))


def peak(variant: str, threads: int) -> float:
    """Measure the peak of multiply-adds.

    Args:
        variant: The instruction set.
        threads: Number of threads.

    Returns:
        GFLOP/s.
    """
    return float(library().rp_peak(variant.encode(), threads))
