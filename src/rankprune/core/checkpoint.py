"""A sparsifier's state as plain tensors, numbers and strings, and back again with every count checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .group import Group
from .layer import Site

_FORMAT = "rankprune.core.sparsifier"
_VERSION = 1


def pack(groups: Sequence[Group], step: int) -> dict[str, Any]:
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
                "sites": {site.key: _pack_site(site) for site in group.sites},
            }
            for group in groups
        ],
    }


def unpack(state: Mapping[str, Any], groups: Sequence[Group]) -> int:
    """Put masks and state back and return the step. Nothing is changed unless all fits."""
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
        for site, mask in zip(group.sites, found):
            site.mask.copy_(site.part(mask))
            site.step = step  # an extra that counts steps goes on, before the next update tells it
            values = entry["sites"][site.key]["state"]
            site.state = {k: _placed(v, site) for k, v in values.items()}
    return step


def _pack_site(site: Site) -> dict[str, Any]:
    mask = site.whole(site.mask.to(torch.uint8)).cpu().contiguous()
    state = {
        k: (site.whole(v) if v.shape == site.mask.shape else v).clone() if isinstance(v, Tensor) else v
        for k, v in site.state.items()
    }
    return {"shape": list(site.shape), "mask": torch.from_numpy(np.packbits(mask.numpy())), "state": state}


def _check(entry: Mapping[str, Any], group: Group) -> list[Tensor]:
    """The masks of one group, once its method, budget and weights agree with the checkpoint's."""
    sites = entry["sites"]
    if (other := sorted(set(sites) ^ {site.key for site in group.sites})) != []:
        raise ValueError(f"the checkpoint is of another model: {other[0]} is prunable in only one of the two")
    mine = {"method": group.method.info.name, "total_steps": group.total_steps, "final": group.final}
    for key, value in mine.items():
        if entry[key] != value:
            raise ValueError(f"the checkpoint was made with {key}={entry[key]}, this run has {value}: attach as it was")
    masks = []
    for site in group.sites:
        shape, packed = list(sites[site.key]["shape"]), sites[site.key]["mask"]
        if shape != list(site.shape):
            here = list(site.shape)
            raise ValueError(f"the checkpoint is of another model: {site.key} is {shape} there and {here} here")
        if packed.dtype != torch.uint8 or packed.numel() != (site.numel + 7) // 8:
            raise ValueError(f"the mask of {site.key} in the checkpoint is damaged: use another checkpoint")
        bits = np.unpackbits(packed.cpu().numpy(), count=site.numel)
        masks.append(torch.from_numpy(bits).bool().reshape(site.shape))
    kept, name = sum(int(mask.sum()) for mask in masks), group.method.info.name
    if group.method.info.exact == "always" and group.method.budget == "weights" and kept != entry["budget"]:
        raise ValueError(
            f"the masks of {name} in the checkpoint keep {kept}, not the {entry['budget']} it declares: "
            "use another checkpoint"
        )
    return masks


def _placed(value: Any, site: Site) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.to(site.weight.device)
    return (site.part(value) if value.shape == site.shape else value).clone()
