"""A model's state dict in one compact safetensors file.

Tensors that are mostly zeros lie in one packed blob, each as the code of its positions (`_codes.py`) and its values;
the others are ordinary safetensors tensors. One entry of the header describes the blob and has a checksum over
everything. The same model gives the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rankprune._util import write_atomic

from . import codes as _codes

Values = Literal["exact", "float16", "bfloat16"]

_KEY, _BLOB, _VERSION = "rankprune", "rankprune.sparse", 1
_BYTES, _RATIO = 1 << 30, 1024  # what any file may unpack to, and how many times its own size
ABOUT = "rankprune.model"  # in the metadata of plain files: which model they are of
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}


def save(
    model: nn.Module | Mapping[str, Tensor],
    path: str | Path,
    *,
    values: Values = "exact",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a model (or a state dict); the old file stays until the new one is complete.

    Args:
        model: The network, or its state dict.
        path: The file to write.
        values: "exact" is lossless to the bit; "float16" and "bfloat16" store the non-zeros of sparse tensors in half
            precision.
        about: Plain values to keep with the weights, which say what model they are of (`read_about`).

    Raises:
        ValueError: `values` is unknown, or an entry cannot be stored.

    Example:
        rp.save(model, "model.sparse.safetensors")
    """
    if values not in get_args(Values):
        raise ValueError(f"values={values!r} is unknown: use 'exact', 'float16' or 'bfloat16'")
    state = model.state_dict() if isinstance(model, nn.Module) else model
    dense: dict[str, Tensor] = {}
    packed: list[dict[str, Any]] = []
    blob = bytearray()
    tied: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        tensor = need_dense(name, tensor).detach()
        # The same numbers only if they are read the same way: a transposed view is another tensor.
        where = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and where in first:
            tied[name] = first[where]
            continue
        first[where] = name
        tensor = tensor.cpu().contiguous()
        stored, data = _pack(name, tensor, values)
        if stored is None:
            dense[name] = tensor.clone()
        else:
            packed.append({"name": name, **stored})
            blob += data
    if blob:
        dense[_BLOB] = torch.frombuffer(blob, dtype=torch.uint8)
    entry: dict[str, Any] = {"version": _VERSION, "tied": tied, "sparse": packed}
    if about is not None:
        entry["model"] = dict(about)
    entry["crc"] = _checksum(entry, dense)
    # One entry: safetensors writes several in no fixed order.
    write_atomic(path, safetensors.torch.save(dense, {_KEY: json.dumps(entry, sort_keys=True)}))


def need_dense(name: str, tensor: Any) -> Tensor:
    """An entry of a state dict that a file can hold, or a sentence that names it.

    Args:
        name: Its name.
        tensor: The entry.

    Raises:
        ValueError: A file cannot hold it.
    """
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.device.type == "meta":
        kind = f"{tensor.layout} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"{name} is no dense tensor with numbers in it ({kind}): leave it out of the state dict")
    if name == _BLOB:
        raise ValueError(f"{name} is the name of the file's own entry: give the tensor another")
    return tensor


def is_ours(path: str | Path) -> bool:
    """Whether a safetensors file was written by `save`.

    Args:
        path: The file.
    """
    with _opened(path) as file:
        return _KEY in (file.metadata() or {})


def read_about(path: str | Path) -> Any:
    """What `save` was given as `about`, or None; of a file from elsewhere, so that it is to be checked.

    Args:
        path: The file.
    """
    try:
        with _opened(path) as file:
            metadata = file.metadata() or {}
        entry = json.loads(metadata.get(_KEY, "{}"))
        found = json.loads(metadata[ABOUT]) if ABOUT in metadata else entry.get("model")
    except (ValueError, RecursionError, AttributeError):
        return None  # no safetensors file, or a damaged one, which `load` says
    return found


def load(path: str | Path, model: nn.Module | None = None, *, max_bytes: float | None = None) -> dict[str, Tensor]:
    """Read a state dict; with a model, fill the model as well.

    Args:
        path: The file.
        model: A model with the same entries.
        max_bytes: How large the sparse tensors may be in memory, all together. By default 1 GiB, 1024 times the size of
            the file or the size of the model, whichever is largest.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with _opened(path) as file:
        text = (file.metadata() or {}).get(_KEY)
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    if text is None:
        raise ValueError(f"{path} was not written by rankprune.save: load it with safetensors.torch")
    if max_bytes is None:
        own = () if model is None else model.state_dict().values()
        max_bytes = max(_BYTES, _RATIO * Path(path).stat().st_size, sum(t.numel() * t.element_size() for t in own))
    try:
        state = _unpack(json.loads(text), state, max_bytes)
    except TooLarge as error:
        raise TooLarge(f"{path} {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({_one_line(error)}): use another copy") from None
    if model is not None:
        fill(model, state, path)
    return state


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """A safetensors file; whatever is wrong with it is one sentence."""
    try:
        with safe_open(str(path), "pt") as file:
            yield file
    except (SafetensorError, ValueError, OverflowError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        reason = _one_line(error)
        raise ValueError(f"{path} is damaged or not a safetensors file ({reason}): use another copy") from None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


class TooLarge(ValueError):
    """The file states tensors larger than the caller allows."""


def fill(model: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Load a state dict into a model, or say in one sentence why it does not fit.

    Args:
        model: The network.
        state: The state dict.
        path: Where it comes from, for the message.

    Raises:
        ValueError: It does not fit.
    """
    own = model.state_dict()
    if odd := sorted(own.keys() ^ state.keys()):
        where = "the file" if odd[0] in state else "the model"
        raise ValueError(f"{path} is of another model: {odd[0]} ({len(odd)} such) is only in {where}")
    for name, tensor in state.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)} in the file, {tuple(own[name].shape)} in the model"
            raise ValueError(f"{path} is of another model: {name} is {shapes}")
    load_fitting(model, state)


def load_fitting(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load weights that are known to fit, whatever their order.

    Files do not hold the versions of modules that `state_dict` has beside its tensors, and without them some modules
    (torchvision's MNASNet) refuse to load: the model's own are taken.

    Args:
        model: The network.
        state: The state dict.
    """
    complete = OrderedDict(state)
    complete._metadata = getattr(model.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    model.load_state_dict(complete, strict=False)  # not strict: BatchNorm's counters may be absent from old files


def _pack(name: str, tensor: Tensor, values: Values) -> tuple[dict[str, Any] | None, bytes]:
    """A sparse tensor's entry and bytes; None where plain storage is no larger."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _DTYPES or not tensor.numel():
        return None, b""
    bits = tensor.view(-1).view(_BITS[tensor.element_size()])  # minus zero has a bit set and is stored as such
    indices = bits.nonzero().view(-1)
    plain = tensor.numel() * tensor.element_size()
    if indices.numel() * tensor.element_size() >= plain:
        return None, b""
    stored = tensor.view(-1)[indices]
    if values != "exact" and tensor.element_size() > 2:
        stored = stored.to(_DTYPES[values])
        if bool((stored.isinf() & tensor.view(-1)[indices].isfinite()).any()):
            largest = float(tensor[tensor.isfinite()].abs().max())
            other = "bfloat16" if values == "float16" and largest < torch.finfo(torch.bfloat16).max else "exact"
            raise ValueError(f"{name} has weights up to {largest:.1e}, too large for {values}: use {other!r}")
    code, parameter, data = _codes.best(indices.numpy(), tensor.numel())
    raw = stored.view(torch.uint8).numpy().tobytes()
    if len(data) + len(raw) >= plain:
        return None, b""
    as_stored = str(stored.dtype).removeprefix("torch.")
    entry = {"shape": list(tensor.shape), "dtype": kind, "values": as_stored, "count": indices.numel(), "code": code,
             "parameter": parameter, "bytes": len(data)}  # fmt: skip
    return entry, data + raw


def _unpack(entry: dict[str, Any], state: dict[str, Tensor], max_bytes: float) -> dict[str, Tensor]:
    if not isinstance(entry, dict) or entry.get("version") != _VERSION:
        version = entry.get("version") if isinstance(entry, dict) else None
        raise _codes.BadCode(f"version {version!r}, this release reads {_VERSION}")
    if entry.pop("crc", None) != _checksum(entry, state):
        raise _codes.BadCode("the checksum differs")
    blob = state.pop(_BLOB, torch.empty(0, dtype=torch.uint8)).numpy().tobytes()
    asked = sum(_size(item) * _DTYPES[item["dtype"]].itemsize for item in entry["sparse"])
    if asked > max_bytes:
        raise TooLarge(
            f"states sparse tensors of {asked / 1e9:.2f} GB, and {max_bytes / 1e9:.2f} GB are allowed: pass "
            f"max_bytes={asked} to rankprune.load if you trust it"
        )
    start = 0
    for item in entry["sparse"]:
        start = _unpack_one(item, blob, start, state)
    if start != len(blob):
        raise _codes.BadCode(f"{len(blob) - start} bytes too many")
    tied = {name: state[other] for name, other in entry["tied"].items()}
    if twice := tied.keys() & state.keys():
        raise _codes.BadCode(f"{min(twice)!r} is given twice")
    return state | tied


def _size(item: dict[str, Any]) -> int:
    """Weights of a sparse tensor, as its entry states."""
    return math.prod(_natural(n) for n in item["shape"])


def _unpack_one(item: dict[str, Any], blob: bytes, start: int, state: dict[str, Tensor]) -> int:
    """One tensor out of the blob into the state; returns where the next begins."""
    shape, count, length = [_natural(n) for n in item["shape"]], _natural(item["count"]), _natural(item["bytes"])
    size = _size(item)
    if size > 1 << 40:
        raise _codes.BadCode(f"{item['name']!r} of {size} weights")
    if not isinstance(item["name"], str) or item["name"] in state:
        raise _codes.BadCode(f"{item['name']!r} is given twice")
    dtype, stored = _DTYPES[item["dtype"]], _DTYPES[item["values"]]
    end = start + length + count * stored.itemsize
    if end > len(blob):
        raise _codes.BadCode("it is cut short")
    indices = _codes.decode(item["code"], _natural(item["parameter"]), blob[start : start + length], count, size)
    tensor = torch.zeros(size, dtype=dtype)
    if count:
        raw = torch.frombuffer(bytearray(blob[start + length : end]), dtype=torch.uint8).view(stored)
        tensor[torch.from_numpy(indices)] = raw.to(dtype)
    state[item["name"]] = tensor.view(shape)
    return end


def _natural(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 48:
        raise _codes.BadCode(f"{number!r} is not a count")
    return number


def _checksum(entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """Over the description and over the names, types, shapes and bytes of what is stored."""
    crc = zlib.crc32(json.dumps({k: entry[k] for k in sorted(entry) if k != "crc"}, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode(), crc)
        if tensor.numel():
            crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
