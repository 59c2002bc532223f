"""A sparsifier's state as plain tensors, numbers and strings, and back again with every count checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .group import Group
from .layer import PrunableLayer

_FORMAT = "rankprune.sparsifier"
_VERSION = 1


class _GroupState(NamedTuple):
    """What a checkpoint has of one group, checked and ready to be assigned."""

    budget: int
    retry: bool
    seed: int
    state: dict[str, Any]
    masks: list[Tensor]  # one per layer, of the shape of the whole weight
    layer_states: list[dict[str, Any]]


def pack(groups: Sequence[Group], step: int) -> dict[str, Any]:
    """The state of a sparsifier as plain tensors, numbers and strings.

    Args:
        groups: Its groups.
        step: Optimizer steps taken.
    """
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "step": step,
        "groups": [
            {
                "method": group.method.info.name,
                "final": group.final,
                "budget": group.budget,
                "retry": group.retry,
                "total_steps": group.total_steps,
                "seed": group.seed,
                "state": _cloned(group.state),
                "sites": {layer.key: _pack_layer(layer) for layer in group.layers},
            }
            for group in groups
        ],
    }


def unpack(state: Mapping[str, Any], groups: Sequence[Group]) -> int:
    """Restore masks and state, and return the step. Nothing is changed unless everything fits.

    Args:
        state: What `pack` returned.
        groups: The groups of a sparsifier of the same model and methods.

    Returns:
        Optimizer steps taken.

    Raises:
        ValueError: The state is of another model or other settings, or is damaged.
    """
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        raise ValueError("this is not a sparsifier's state: pass what Sparsifier.state_dict() returned")
    if state.get("version") != _VERSION:
        raise ValueError(f"the sparsifier's state has version {state.get('version')}, this release reads {_VERSION}")
    try:
        entries = list(state["groups"])
        if len(entries) != len(groups):
            raise ValueError(f"the checkpoint has {len(entries)} methods, this run has {len(groups)}: attach as it was")
        checked = [_check(entry, group) for entry, group in zip(entries, groups)]
        step = int(state["step"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the sparsifier's state is incomplete ({error!r}): use another checkpoint") from None
    for group, saved in zip(groups, checked):
        group.budget, group.retry, group.seed, group.state = saved.budget, saved.retry, saved.seed, saved.state
        for layer, mask, layer_state in zip(group.layers, saved.masks, saved.layer_states):
            layer.mask.copy_(layer.part(mask))
            layer.state = layer_state
            layer.step = step  # extras that count steps read it before the next update sets it
    return step


def _pack_layer(layer: PrunableLayer) -> dict[str, Any]:
    mask = layer.whole(layer.mask.to(torch.uint8)).cpu().contiguous()
    state = {k: layer.whole(v) if _is_per_weight(v, layer) else v for k, v in layer.state.items()}
    return {"shape": list(layer.shape), "mask": torch.from_numpy(np.packbits(mask.numpy())), "state": _cloned(state)}


def _check(entry: Mapping[str, Any], group: Group) -> _GroupState:
    """The state of one group, if its method, budget and weights agree with those of this run."""
    saved, name = entry["sites"], group.method.info.name
    if other := sorted(set(saved) ^ {layer.key for layer in group.layers}):
        raise ValueError(f"the checkpoint is of another model: {other[0]} is prunable in only one of the two")
    for key, value in {"method": name, "total_steps": group.total_steps, "final": group.final}.items():
        if entry[key] != value:
            raise ValueError(f"the checkpoint was made with {key}={entry[key]}, this run has {value}: attach as it was")
    masks = [_unpack_mask(saved[layer.key], layer) for layer in group.layers]
    kept, budget = sum(int(mask.sum()) for mask in masks), int(entry["budget"])
    if group.method.info.exact == "always" and group.method.budget == "weights" and kept != budget:
        raise ValueError(
            f"the masks of {name} in the checkpoint keep {kept}, not the {budget} it declares: use another checkpoint"
        )
    layer_states = [_unpack_state(saved[layer.key]["state"], layer) for layer in group.layers]
    return _GroupState(budget, bool(entry["retry"]), int(entry["seed"]), _cloned(entry["state"]), masks, layer_states)


def _unpack_mask(entry: Mapping[str, Any], layer: PrunableLayer) -> Tensor:
    shape, packed = list(entry["shape"]), entry["mask"]
    if shape != list(layer.shape):
        here = list(layer.shape)
        raise ValueError(f"the checkpoint is of another model: {layer.key} is {shape} there and {here} here")
    if packed.dtype != torch.uint8 or packed.numel() != (layer.numel + 7) // 8:
        raise ValueError(f"the mask of {layer.key} in the checkpoint is damaged: use another checkpoint")
    bits = np.unpackbits(packed.cpu().numpy(), count=layer.numel)
    return torch.from_numpy(bits).bool().reshape(layer.shape)


def _unpack_state(entry: Mapping[str, Any], layer: PrunableLayer) -> dict[str, Any]:
    """The state of a layer: this rank's part of it, on the device of the weight."""
    state = {}
    for key, value in entry.items():
        if _is_per_weight(layer.state.get(key), layer) and value.shape != layer.shape:
            raise ValueError(f"the {key} of {layer.key} in the checkpoint is damaged: use another checkpoint")
        if isinstance(value, Tensor):
            value = value.to(layer.weight.device)
            value = (layer.part(value) if value.shape == layer.shape else value).clone()
        state[key] = value
    return state


def _is_per_weight(value: Any, layer: PrunableLayer) -> bool:
    """Whether this is a tensor with one value per weight, which ranks share as they share the weight."""
    return isinstance(value, Tensor) and value.shape == layer.mask.shape


def _cloned(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}
