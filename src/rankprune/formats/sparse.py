"""A model's state dict in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ._atomic import write_atomic

_KEY = "rankprune"
_FORMAT = "model"


def save(model: nn.Module | Mapping[str, Tensor], path: str | Path) -> None:
    """Write a model (or a state dict); the old file stays until the new one is complete."""
    state = model.state_dict() if isinstance(model, nn.Module) else model
    tensors: dict[str, Tensor] = {}
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        tensor = tensor.detach()
        where = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and where in first:
            tied[name] = first[where]
            continue
        first[where] = name
        tensors[name] = tensor.contiguous().clone()
    # One entry: safetensors writes several in no fixed order, and the same model must give the same bytes.
    entry = json.dumps({"format": _FORMAT, "version": 1, "tied": tied}, sort_keys=True)
    write_atomic(path, safetensors.torch.save(tensors, {_KEY: entry}))


def load(path: str | Path, model: nn.Module | None = None) -> dict[str, Tensor]:
    """Read a state dict; with a model, fill the model as well."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}): use another copy") from None
    try:
        entry = json.loads(metadata[_KEY])
        state |= {name: state[other] for name, other in entry["tied"].items()}
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError):
        raise ValueError(f"{path} was not written by rankprune.save: load it with safetensors.torch") from None
    if model is not None:
        fill(model, state, path)
    return state


def fill(model: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Load a state dict into a model, or say in one sentence why it does not fit."""
    own = model.state_dict()
    if odd := sorted(own.keys() ^ state.keys()):
        where = "the file" if odd[0] in state else "the model"
        raise ValueError(f"{path} is of another model: {odd[0]} ({len(odd)} such) is only in {where}")
    for name, tensor in state.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)} in the file, {tuple(own[name].shape)} in the model"
            raise ValueError(f"{path} is of another model: {name} is {shapes}")
    model.load_state_dict(dict(state))
