"""A sparsifier's state as plain tensors, numbers and strings, and back again with every count checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .group import Group
from .layer import PrunableLayer

_FORMAT = "rankprune.sparsifier"
_VERSION = 1


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
                "state": {k: v.clone() if isinstance(v, Tensor) else v for k, v in group.state.items()},
                "sites": {layer.key: _pack_layer(layer) for layer in group.layers},
            }
            for group in groups
        ],
    }


def unpack(state: Mapping[str, Any], groups: Sequence[Group]) -> int:
    """Put masks and state back and return the step. Nothing is changed unless all fits.

    Args:
        state: What `pack` returned.
        groups: The groups of a sparsifier of the same model and methods.

    Returns:
        Optimizer steps taken.

    Raises:
        ValueError: The state is of another model or other settings.
    """
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT:
        raise ValueError("this is not a sparsifier's state: pass what Sparsifier.state_dict() returned")
    if state.get("version") != _VERSION:
        raise ValueError(f"the sparsifier's state has version {state.get('version')}, this release reads {_VERSION}")
    try:
        saved = list(state["groups"])
        if len(saved) != len(groups):
            raise ValueError(f"the checkpoint has {len(saved)} methods, this run has {len(groups)}: attach as it was")
        masks = [_check(entry, group) for entry, group in zip(saved, groups)]
        step = int(state["step"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the sparsifier's state is incomplete ({error!r}): use another checkpoint") from None
    for entry, group, found in zip(saved, groups, masks):
        group.budget, group.retry = int(entry["budget"]), bool(entry["retry"])
        group.state = {k: v.clone() if isinstance(v, Tensor) else v for k, v in entry["state"].items()}
        for layer, mask in zip(group.layers, found):
            layer.mask.copy_(layer.part(mask))
            layer.step = step  # an extra that counts steps goes on, before the next update tells it
            values = entry["sites"][layer.key]["state"]
            layer.state = {k: _placed(v, layer) for k, v in values.items()}
    return step


def _pack_layer(layer: PrunableLayer) -> dict[str, Any]:
    mask = layer.whole(layer.mask.to(torch.uint8)).cpu().contiguous()
    state = {
        k: (layer.whole(v) if v.shape == layer.mask.shape else v).clone() if isinstance(v, Tensor) else v
        for k, v in layer.state.items()
    }
    return {"shape": list(layer.shape), "mask": torch.from_numpy(np.packbits(mask.numpy())), "state": state}


def _check(entry: Mapping[str, Any], group: Group) -> list[Tensor]:
    """The masks of one group, once its method, budget and weights agree with the checkpoint's."""
    layers = entry["sites"]
    if (other := sorted(set(layers) ^ {layer.key for layer in group.layers})) != []:
        raise ValueError(f"the checkpoint is of another model: {other[0]} is prunable in only one of the two")
    mine = {"method": group.method.info.name, "total_steps": group.total_steps, "final": group.final}
    for key, value in mine.items():
        if entry[key] != value:
            raise ValueError(f"the checkpoint was made with {key}={entry[key]}, this run has {value}: attach as it was")
    masks = []
    for layer in group.layers:
        shape, packed = list(layers[layer.key]["shape"]), layers[layer.key]["mask"]
        if shape != list(layer.shape):
            here = list(layer.shape)
            raise ValueError(f"the checkpoint is of another model: {layer.key} is {shape} there and {here} here")
        if packed.dtype != torch.uint8 or packed.numel() != (layer.numel + 7) // 8:
            raise ValueError(f"the mask of {layer.key} in the checkpoint is damaged: use another checkpoint")
        bits = np.unpackbits(packed.cpu().numpy(), count=layer.numel)
        masks.append(torch.from_numpy(bits).bool().reshape(layer.shape))
    kept, name = sum(int(mask.sum()) for mask in masks), group.method.info.name
    if group.method.info.exact == "always" and group.method.budget == "weights" and kept != entry["budget"]:
        raise ValueError(
            f"the masks of {name} in the checkpoint keep {kept}, not the {entry['budget']} it declares: "
            "use another checkpoint"
        )
    return masks


def _placed(value: Any, layer: PrunableLayer) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.to(layer.weight.device)
    return (layer.part(value) if value.shape == layer.shape else value).clone()
