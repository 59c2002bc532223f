"""A network as one file: a JSON header and the arrays behind it. The reader trusts nothing in it.

bytes 0-7    b"RPENGINE"
bytes 8-11   version, little-endian
bytes 12-19  length of the header
then         SHA-256 of everything after it (32 bytes), the header, the arrays, each at a multiple of 64
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._atomic import write_atomic
from .check import check
from .graph import Graph, Node, Weight
from .packing import Choice

MAGIC = b"RPENGINE"
VERSION = 2
_HEAD = struct.Struct("<8sIQ32s")
_ALIGN = 64
_TYPES = {"f4": np.float32, "i4": np.int32, "i8": np.int64}
Choices = dict[bool, dict[int, Choice]]


class DamagedPlan(ValueError):
    """The file is not a plan, or not a whole one, or of another version."""


class Plan(NamedTuple):
    """What a file holds: a graph, the kernel shape of each layer, and whether batches run eight images at once."""

    graph: Graph
    choices: Choices
    eight: bool


def write(path: str | Path, graph: Graph, choices: Choices, eight: bool) -> int:
    """Write a plan that `read` takes; the old file stays until the new one is complete. Returns its size in bytes."""
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
        "choices": [[int(images), index, asdict(c)] for images, found in choices.items() for index, c in found.items()],
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
    """Read and check a plan; whatever is wrong with it is one sentence."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    data = path.read_bytes()
    try:
        return parse(data)
    except DamagedPlan as error:
        raise DamagedPlan(f"{path} {error}") from None


def parse(data: bytes) -> Plan:
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
        return _decode(json.loads(bytes(body[:length])), body[length:])
    except DamagedPlan:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:160]
        raise DamagedPlan(f"is not a sound plan ({reason}): save it again") from None


def _decode(header: dict[str, Any], blobs: memoryview) -> Plan:
    def array(entry: dict[str, Any], *kinds: str) -> np.ndarray:
        kind, shape = entry["type"], [_count(n) for n in entry["shape"]]
        if kind not in kinds:
            raise DamagedPlan(f"is not a sound plan: an array of {kind} where {kinds[0]} belongs")
        at, size = (_count(n) for n in header["blobs"][_count(entry["blob"])])
        if size != math.prod(shape) * np.dtype(_TYPES[kind]).itemsize or at + size > len(blobs) or at % _ALIGN:
            raise DamagedPlan("is not a sound plan: an array lies outside of the file")
        return np.frombuffer(blobs[at : at + size], _TYPES[kind]).reshape(shape)

    graph = Graph([tuple(_count(n) for n in shape) for shape in header["shapes"]])
    graph.inputs, graph.outputs = ([_count(v) for v in header[k]] for k in ("inputs", "outputs"))
    for entry in header["nodes"]:
        weight = None
        if entry["weight"] is not None:
            shape = tuple(_count(n) for n in entry["weight"]["shape"])
            position = entry["weight"].get("position")
            values = array(entry["weight"]["values"], "f4")
            weight = Weight(shape, values, None if position is None else array(position, "i4"))
        arrays = {str(k): array(v, "i4" if k == "index" else "f4") for k, v in entry["arrays"].items()}
        inputs = [_count(v) for v in entry["inputs"]]
        graph.nodes.append(
            Node(
                str(entry["op"]),
                inputs,
                _count(entry["output"]),
                str(entry["name"]),
                dict(entry["attrs"]),
                arrays,
                weight,
            )
        )
    check(graph)
    choices: Choices = {False: {}, True: {}}
    for images, index, found in header["choices"]:
        numbers = {k: _count(found[k]) for k in ("width", "height", "block", "groups")}
        choices[bool(images)][_count(index)] = Choice(**numbers, dense=bool(found["dense"]))
    return Plan(graph, choices, bool(header["eight"]))


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise DamagedPlan(f"is not a sound plan: {value!r} where a count belongs")
    return value
