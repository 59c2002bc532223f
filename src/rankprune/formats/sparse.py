"""A model's state dict in one compact safetensors file.

Tensors that are mostly zeros are packed into one blob: for each, the encoded positions of its nonzeros (`codes.py`),
then their values. All other tensors are ordinary safetensors tensors. One metadata entry describes the blob and holds a
checksum of the whole content. The same model always gives the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rankprune._util import one_line, shorten, write_atomic

from . import codes

Values = Literal["exact", "float16", "bfloat16"]

ABOUT_KEY = "rankprune.model"  # metadata key of plain safetensors files; a sparse file keeps `about` in its own entry
_KEY, _BLOB, _VERSION = "rankprune", "rankprune.sparse", 1
# By default the sparse tensors of a file may take this much memory, or this many times the size of the file.
_MAX_BYTES, _MAX_RATIO = 1 << 30, 1024
_MAX_WEIGHTS = 1 << 40  # of one tensor
_SAME_SIZE_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}


class TooLarge(ValueError):
    """The file declares tensors that are larger than the caller allows."""


def save(
    model: nn.Module | Mapping[str, Tensor],
    path: str | Path,
    *,
    values: Values = "exact",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a model or a state dict atomically.

    Args:
        model: The model, or its state dict.
        path: The file to write.
        values: "exact" is lossless; "float16" and "bfloat16" store the nonzeros of sparse tensors in half precision.
        about: Values that JSON can hold, stored with the weights to describe their model; see `read_about`.

    Raises:
        ValueError: `values` is unknown, or a tensor or `about` cannot be stored.

    Example:
        rp.save(model, "model.sparse.safetensors")
    """
    if values not in get_args(Values):
        raise ValueError(f"values={values!r} is unknown: use 'exact', 'float16' or 'bfloat16'")
    state = model.state_dict() if isinstance(model, nn.Module) else model
    # All at once: a mapping that creates its tensors on access could reuse the address of a freed one.
    tensors = {name: to_storable(name, tensor) for name, tensor in state.items()}
    dense: dict[str, Tensor] = {}
    packed: list[dict[str, Any]] = []
    blob = bytearray()
    tied: dict[str, str] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        # Shape and stride belong to the key: a transposed view of the same memory is another tensor.
        view = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and view in first_name:
            tied[name] = first_name[view]
            continue
        first_name[view] = name
        tensor = tensor.cpu().contiguous()
        entry, data = _pack(name, tensor, values)
        if entry is None:
            dense[name] = tensor.clone()  # safetensors refuses tensors that share memory
        else:
            packed.append({"name": name, **entry})
            blob += data
    if blob:
        dense[_BLOB] = torch.frombuffer(blob, dtype=torch.uint8)
    header: dict[str, Any] = {"version": _VERSION, "tied": tied, "sparse": packed}
    if about is not None:
        header["model"] = json.loads(about_json(about))
    header["crc"] = _checksum(header, dense)
    # A single metadata entry, because safetensors writes several in no fixed order.
    write_atomic(path, safetensors.torch.save(dense, {_KEY: json.dumps(header, sort_keys=True)}))


def to_storable(name: str, tensor: Any) -> Tensor:
    """Detach an entry of a state dict for writing it to a file.

    Args:
        name: Name of the entry.
        tensor: The entry.

    Returns:
        The tensor; conjugate and negative views, which files do not have, are materialized.

    Raises:
        ValueError: A file cannot hold the entry.
    """
    if name == _BLOB:
        raise ValueError(f"{name} is a name that the file format reserves: rename the tensor")
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} is no tensor but a {type(tensor).__name__}: leave it out of the state dict")
    if is_lazy(tensor):
        raise ValueError(f"{name} is not initialized yet: run the model once before saving it")
    if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type == "meta":
        kind = "nested" if tensor.is_nested else f"{tensor.layout} on {tensor.device}"
        raise ValueError(f"{name} is no dense tensor with values ({kind}): leave it out of the state dict")
    if is_traceable_wrapper_subclass(tensor):  # no storage of its own: a DTensor, a quantized weight of torchao
        raise ValueError(f"{name} is a {type(tensor).__name__}: gather or dequantize it to a plain tensor first")
    if not _has_safetensors_name(tensor.dtype):
        raise ValueError(f"{name} is of {tensor.dtype}, which safetensors cannot hold: convert it to another type")
    return tensor.detach().resolve_conj().resolve_neg()


@lru_cache
def _has_safetensors_name(dtype: torch.dtype) -> bool:
    try:
        safetensors.torch.save({"probe": torch.empty(0, dtype=dtype)})
    except (KeyError, RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def about_json(about: Mapping[str, Any]) -> str:
    """Encode the description of a model.

    Args:
        about: Values that JSON can hold.

    Returns:
        JSON with sorted keys.

    Raises:
        ValueError: JSON cannot hold a value.
    """
    try:
        plain = json.loads(json.dumps(dict(about)))  # as it is read back: 9 and 10 as keys become "9" and "10"
        return json.dumps(plain, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"about={shorten(about)} is not plain values ({one_line(error)}): use numbers, text, lists and dicts"
        ) from None


def is_sparse_file(path: str | Path) -> bool:
    """Whether a safetensors file was written by `save`.

    Args:
        path: The file.

    Returns:
        True if it was.

    Raises:
        ValueError: The file is damaged or not a safetensors file.
    """
    with _open(path) as file:
        return _KEY in (file.metadata() or {})


def read_about(path: str | Path) -> Any:
    """Read the description of the model that `save` or `save_dense` stored.

    Args:
        path: The file.

    Returns:
        The parsed JSON, which is not validated; None if the file has none or is no intact safetensors file.
    """
    try:
        with _open(path) as file:
            metadata = file.metadata() or {}
        if ABOUT_KEY in metadata:
            return json.loads(metadata[ABOUT_KEY])
        return json.loads(metadata.get(_KEY, "{}")).get("model")
    except (ValueError, RecursionError, AttributeError):
        return None


def load(path: str | Path, model: nn.Module | None = None, *, max_bytes: float | None = None) -> dict[str, Tensor]:
    """Read a state dict; with a model, also load it into the model.

    Args:
        path: The file.
        model: A model with the same entries.
        max_bytes: Largest size of all sparse tensors in memory. By default 1 GiB, 1024 times the size of the file or
            the size of the model, whichever is largest.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        TooLarge: The sparse tensors would take more than `max_bytes`.
        ValueError: The file is damaged, was not written by `save`, or does not fit the model.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with _open(path) as file:
        header = (file.metadata() or {}).get(_KEY)
        state = {} if header is None else {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header is None:
        raise ValueError(f"{path} was not written by rankprune.save: load it with safetensors.torch")
    if max_bytes is None:
        own = () if model is None else model.state_dict().values()
        own_bytes = sum(tensor.numel() * tensor.element_size() for tensor in own)
        max_bytes = max(_MAX_BYTES, _MAX_RATIO * Path(path).stat().st_size, own_bytes)
    try:
        state = _unpack(json.loads(header), state, max_bytes)
    except TooLarge as error:
        raise TooLarge(f"{path} {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({one_line(error)}): use another copy") from None
    if model is not None:
        _load_into(model, state, path)
    return state


@contextlib.contextmanager
def _open(path: str | Path) -> Iterator[Any]:
    """Open a safetensors file; all errors of the library become one sentence."""
    try:
        with safe_open(str(path), "pt") as file:
            yield file
    except (SafetensorError, ValueError, OverflowError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        reason = one_line(error)
        raise ValueError(f"{path} is damaged or not a safetensors file ({reason}): use another copy") from None


def _load_into(model: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Load a state dict into a model; nothing is loaded unless names and shapes all agree."""
    own = model.state_dict()
    if unmatched := sorted(own.keys() ^ state.keys()):
        where = "the file" if unmatched[0] in state else "the model"
        count = f"{unmatched[0]} ({len(unmatched)} such)"
        raise ValueError(f"{path} is of another model, because {count} is only in {where}: load it into its own model")
    for name, tensor in state.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)} in the file and {tuple(own[name].shape)} in the model"
            raise ValueError(f"{path} is of another model, because {name} is {shapes}: load it into its own model")
    load_fitting(model, state)


def load_fitting(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load weights that are known to fit, in any order.

    A file does not hold the module versions that `state_dict` stores beside the tensors, and without them some modules
    (torchvision's MNASNet) refuse to load, so the model's own versions are used.

    Args:
        model: The model.
        state: The state dict.
    """
    complete = OrderedDict(state)
    complete._metadata = getattr(model.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    model.load_state_dict(complete, strict=False)  # old files lack BatchNorm's counter of batches


def _pack(name: str, tensor: Tensor, values: Values) -> tuple[dict[str, Any] | None, bytes]:
    """The description and bytes of a sparse tensor; (None, b"") if plain storage is as small."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES or not tensor.numel():
        return None, b""
    flat = tensor.view(-1)
    # By their bits, because -0.0 equals zero but must come back as -0.0.
    indices = flat.view(_SAME_SIZE_INTEGER[tensor.element_size()]).nonzero().view(-1)
    if indices.numel() == tensor.numel():
        return None, b""
    nonzeros = flat[indices]
    stored = nonzeros
    if values != "exact" and tensor.element_size() > 2:
        stored = nonzeros.to(_DTYPES[values])
        if bool((stored.isinf() & nonzeros.isfinite()).any()):
            largest = float(nonzeros[nonzeros.isfinite()].abs().max())
            other = "bfloat16" if values == "float16" and largest < torch.finfo(torch.bfloat16).max else "exact"
            raise ValueError(f"{name} has weights up to {largest:.1e}, too large for {values}: use {other!r}")
    code, parameter, data = codes.shortest(indices.numpy(), tensor.numel())
    raw = stored.view(torch.uint8).numpy().tobytes()
    if len(data) + len(raw) >= tensor.numel() * tensor.element_size():
        return None, b""
    entry = {"shape": list(tensor.shape), "dtype": dtype, "values": str(stored.dtype).removeprefix("torch."),
             "count": indices.numel(), "code": code, "parameter": parameter, "bytes": len(data)}  # fmt: skip
    return entry, data + raw


def _unpack(header: Any, state: dict[str, Tensor], max_bytes: float) -> dict[str, Tensor]:
    """Verify the header and decode the blob. The header may be any JSON; an invalid one raises some built-in error."""
    version = header.get("version") if isinstance(header, dict) else None
    if version != _VERSION:
        raise ValueError(f"version {shorten(version)}, and this release reads {_VERSION}")
    if header.pop("crc", None) != _checksum(header, state):
        raise ValueError("the checksum differs")
    blob = state.pop(_BLOB, torch.empty(0, dtype=torch.uint8)).numpy().tobytes()
    needed = sum(_size(entry) * _DTYPES[entry["dtype"]].itemsize for entry in header["sparse"])
    if needed > max_bytes:
        raise TooLarge(
            f"declares sparse tensors of {needed / 1e9:.2f} GB, and {max_bytes / 1e9:.2f} GB are allowed: pass "
            f"max_bytes={needed} to rankprune.load if you trust it"
        )
    start = 0
    for entry in header["sparse"]:
        start = _unpack_one(entry, blob, start, state)
    if start != len(blob):
        raise ValueError(f"{len(blob) - start} bytes too many")
    tied = {name: state[other] for name, other in header["tied"].items()}
    if twice := tied.keys() & state.keys():
        raise ValueError(f"{shorten(min(twice))} is given twice")
    return state | tied


def _unpack_one(entry: dict[str, Any], blob: bytes, start: int, state: dict[str, Tensor]) -> int:
    """Decode one tensor of the blob into the state; returns where the next one starts."""
    name, size, count, length = entry["name"], _size(entry), _count(entry["count"]), _count(entry["bytes"])
    if not isinstance(name, str):
        raise ValueError(f"{shorten(name)} is no name")
    if name in state:
        raise ValueError(f"{shorten(name)} is given twice")
    dtype, stored = _DTYPES[entry["dtype"]], _DTYPES[entry["values"]]
    middle = start + length
    end = middle + count * stored.itemsize
    if end > len(blob):
        raise ValueError("it is cut short")
    indices = codes.decode(entry["code"], _count(entry["parameter"]), blob[start:middle], count, size)
    tensor = torch.zeros(size, dtype=dtype)
    if count:
        nonzeros = torch.frombuffer(bytearray(blob[middle:end]), dtype=torch.uint8).view(stored)
        tensor[torch.from_numpy(indices)] = nonzeros.to(dtype)
    state[name] = tensor.view(entry["shape"])
    return end


def _size(entry: dict[str, Any]) -> int:
    """Number of weights of a sparse tensor, according to its shape."""
    size = math.prod(_count(n) for n in entry["shape"])
    if size > _MAX_WEIGHTS:
        raise ValueError(f"a tensor of more than {_MAX_WEIGHTS} weights")
    return size


def _count(value: Any) -> int:
    """A non-negative integer of at most 48 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 48:
        raise ValueError(f"{shorten(value)} is not a count")
    return value


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of the header and of the names, types, shapes and bytes of all tensors."""
    crc = zlib.crc32(json.dumps({key: header[key] for key in sorted(header) if key != "crc"}, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode(), crc)
        if tensor.numel():
            crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
