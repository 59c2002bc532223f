"""The file format of a plan: a JSON header followed by arrays. The reader trusts nothing in the file.

bytes 0-7    b"RPENGINE"
bytes 8-11   version, little-endian
bytes 12-19  length of the header
then         SHA-256 of everything after it (32 bytes), the header, the arrays, each aligned to 64 bytes
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankprune._util import shorten, write_atomic
from rankprune.engine.backend.choice import Choice, KernelPlan
from rankprune.engine.graph.graph import Graph, Node, Weight
from rankprune.engine.graph.validate import check

MAGIC = b"RPENGINE"
VERSION = 4
_HEAD = struct.Struct("<8sIQ32s")
_ALIGN = 64
_DIMENSIONS = 8
_TYPES = {"f4": np.float32, "i4": np.int32, "i8": np.int64}


class DamagedPlan(ValueError):
    """The file is not a plan, is damaged, or has another version."""


class Plan(NamedTuple):
    """The content of a file: a graph, the kernel of each layer, and whether batches run eight images at once."""

    graph: Graph
    kernels: KernelPlan
    eight: bool


def write(path: str | Path, graph: Graph, kernels: KernelPlan, eight: bool) -> int:
    """Write a plan atomically.

    Args:
        path: The file.
        graph: The network.
        kernels: The kernel of each layer.
        eight: Batches run eight images at once.

    Returns:
        Size of the file in bytes.

    Raises:
        ValueError: `read` would not accept the plan.
    """
    blobs: list[np.ndarray] = []

    def keep(array: np.ndarray) -> dict[str, Any]:
        kind = next(k for k, t in _TYPES.items() if array.dtype == t)
        blobs.append(np.ascontiguousarray(array))
        return {"type": kind, "shape": list(array.shape), "blob": len(blobs) - 1}

    nodes = []
    for node in graph.nodes:
        weight = None
        if node.weight is not None:
            plain = node.weight.plain()
            weight = {"shape": list(plain.shape), "values": keep(plain.values)}
            if plain.position is not None:
                weight["position"] = keep(plain.position)
        arrays = {name: keep(array) for name, array in node.arrays.items()}
        nodes.append(
            {"op": node.op, "inputs": node.inputs, "output": node.output, "name": node.name, "attrs": node.attrs,
             "arrays": arrays, "weight": weight}
        )  # fmt: skip
    places, at = [], 0
    for blob in blobs:
        places.append([at, blob.nbytes])
        at += -(-blob.nbytes // _ALIGN) * _ALIGN
    header = {
        "shapes": graph.shapes, "inputs": graph.inputs, "outputs": graph.outputs, "nodes": nodes, "blobs": places,
        "eight": eight,
        "choices": [[int(eight), i, asdict(c)] for eight in (False, True) for i, c in kernels.of(eight).items()],
    }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_HEAD.size + len(text)) % _ALIGN)
    body = bytearray(text)
    for blob in blobs:
        body += blob.tobytes()
        body += bytes(-blob.nbytes % _ALIGN)
    data = _HEAD.pack(MAGIC, VERSION, len(text), hashlib.sha256(body).digest()) + bytes(body)
    try:
        parse(data)
    except DamagedPlan as error:
        reason = str(error).removesuffix(": save it again")
        raise ValueError(f"{path} is not written, because it {reason}: run this network with torch") from None
    write_atomic(Path(path), data)
    return len(data)


def read(path: str | Path) -> Plan:
    """Read and check a plan.

    Args:
        path: The file.

    Returns:
        The plan.

    Raises:
        DamagedPlan: The file is not a valid plan; the message is one sentence.
        FileNotFoundError: There is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    data = path.read_bytes()
    try:
        return parse(data)
    except DamagedPlan as error:
        raise DamagedPlan(f"{path} {error}") from None


def parse(data: bytes) -> Plan:
    """Check and decode the content of a plan.

    Args:
        data: The content of the file.

    Returns:
        The plan.

    Raises:
        DamagedPlan: The content is not a valid plan; the message lacks the file's name.
    """
    if len(data) < _HEAD.size or data[:8] != MAGIC:
        raise DamagedPlan("is not an engine plan: save one with compile(...).save(path)")
    _, version, length, digest = _HEAD.unpack_from(data)
    if version != VERSION:
        raise DamagedPlan(f"is a plan of version {version}, this package reads {VERSION}: save it again with this one")
    body = memoryview(data)[_HEAD.size :]
    if hashlib.sha256(body).digest() != digest:
        raise DamagedPlan("is damaged or cut short (its checksum differs): use another copy")
    if length > len(body):
        raise DamagedPlan("is damaged: its header is longer than the file")
    try:
        return _decode(json.loads(bytes(body[:length]), object_pairs_hook=_distinct), body[length:])
    except DamagedPlan:
        raise
    except (ValueError, RecursionError) as error:  # Unsound, invalid JSON, or JSON that is nested too deeply
        reason = " ".join(str(error).split())[:160]
        raise DamagedPlan(f"is not a sound plan ({reason}): save it again") from None


def _decode(header: dict[str, Any], data: memoryview) -> Plan:
    top = _record(header, "header", "shapes", "inputs", "outputs", "nodes", "blobs", "eight", "choices")
    blobs = _Blobs(top["blobs"], data)
    graph = Graph([tuple(_counts(shape)) for shape in _list(top["shapes"])])
    graph.inputs, graph.outputs = (_counts(top[k]) for k in ("inputs", "outputs"))
    for item in _list(top["nodes"]):
        entry = _record(item, "operator", "op", "inputs", "output", "name", "attrs", "arrays", "weight")
        weight = None if entry["weight"] is None else _weight(entry["weight"], blobs)
        arrays = {name: blobs.array(array) for name, array in _record(entry["arrays"], "arrays").items()}
        graph.nodes.append(
            Node(
                _text(entry["op"]), _counts(entry["inputs"]), _count(entry["output"]),
                _text(entry["name"]), _record(entry["attrs"], "attributes"), arrays, weight,
            )
        )  # fmt: skip
    blobs.finish()
    check(graph)
    return Plan(graph, _kernels(top["choices"], graph), _flag(top["eight"]))


def _weight(item: Any, blobs: _Blobs) -> Weight:
    entry = _record({"position": None, **_record(item, "weight")}, "weight", "shape", "values", "position")
    values = blobs.array(entry["values"])
    position = None if entry["position"] is None else blobs.array(entry["position"])
    return Weight(tuple(_counts(entry["shape"])), values, position)


def _kernels(items: Any, graph: Graph) -> KernelPlan:
    kernels = KernelPlan({}, {})
    for item in _list(items):
        eight, index, entry = _list(item)
        entry = _record(entry, "choice", *(f.name for f in fields(Choice)))
        numbers = {name: _count(value) for name, value in entry.items() if name != "dense"}
        if _count(eight) > 1 or _count(index) >= len(graph.nodes):
            raise DamagedPlan(f"is not a sound plan: a choice for operator {shorten(index)}")
        kernels.of(bool(eight))[index] = Choice(**numbers, dense=_flag(entry["dense"]))
    return kernels


class _Blobs:
    """The arrays after the header: contiguous and each used once, in the order of `write`."""

    def __init__(self, places: Any, data: memoryview) -> None:
        self._data, self._places, self._used, at = data, [], 0, 0
        for place in _list(places):
            start, size = _counts(place)
            if start != at or at + size > len(data):
                raise DamagedPlan("is not a sound plan: an array lies outside of the file")
            self._places.append((start, size))
            at += -(-size // _ALIGN) * _ALIGN

    def array(self, item: Any) -> np.ndarray:
        entry = _record(item, "array", "type", "shape", "blob")
        kind, shape = _TYPES.get(_text(entry["type"])), tuple(_counts(entry["shape"]))
        if kind is None or _count(entry["blob"]) != self._used or self._used == len(self._places):
            raise DamagedPlan(f"is not a sound plan: an array {shorten(item)}")
        at, size = self._places[self._used]
        self._used += 1
        if size != math.prod(shape) * np.dtype(kind).itemsize or len(shape) > _DIMENSIONS:
            raise DamagedPlan(f"is not a sound plan: an array of {size} bytes for {shorten(shape)}")
        return np.frombuffer(self._data[at : at + size], kind).reshape(shape)

    def finish(self) -> None:
        if self._used != len(self._places):
            raise DamagedPlan("is not a sound plan: an array belongs to no operator")


def _record(value: Any, what: str, *names: str) -> dict[str, Any]:
    """Return the object if it has exactly these fields; without names, any fields are allowed."""
    if type(value) is not dict or (names and value.keys() != set(names)):
        odd = shorten(sorted(value.keys() ^ set(names)) if type(value) is dict else value)
        raise DamagedPlan(f"is not a sound plan: {what} with other fields than its own ({odd})")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise DamagedPlan("is not a sound plan: a field is given twice")
    return record


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise DamagedPlan(f"is not a sound plan: {shorten(value)} where a list belongs")
    return value


def _counts(value: Any) -> list[int]:
    return [_count(number) for number in _list(value)]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise DamagedPlan(f"is not a sound plan: {shorten(value)} where a word belongs")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise DamagedPlan(f"is not a sound plan: {shorten(value)} where true or false belongs")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise DamagedPlan(f"is not a sound plan: {shorten(value)} where a count belongs")
    return value
