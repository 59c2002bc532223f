"""Which weights of a model are prunable."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ._sharding import local, sharded
from ._site import Kind, Site, canonical

Selector = str | type[nn.Module]

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def find_sites(model: nn.Module, dense: Iterable[Selector] = ()) -> tuple[list[Site], dict[str, str]]:
    """The prunable weights in the order of `named_parameters()`, and those left out with the reason.

    Prunable are the weights of Conv*, Linear and MultiheadAttention with more than one dimension. `dense` leaves out by
    glob (on the parameter's or the module's name) or by module type. A tied weight is one site.
    """
    dense = list(dense)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = {name: i for i, name in enumerate(names.values())}
    sites: dict[str, Site] = {}
    left_out: dict[str, str] = {}
    unused = {d for d in dense if isinstance(d, str)}
    for module_name, module in model.named_modules():
        for attribute, kind in _weights(module):
            weight = module._parameters.get(attribute)
            if weight is None or weight.ndim < 2 or names[id(weight)] in sites:
                continue
            if isinstance(weight, nn.UninitializedParameter):
                raise ValueError(f"{module_name}.{attribute} has no shape yet: run one batch through the model first")
            name = names[id(weight)]
            matched = [d for d in dense if _matches(d, name, module_name, module)]
            unused -= {d for d in matched if isinstance(d, str)}
            if matched:
                left_out[name] = "kept dense"
            elif not weight.requires_grad:
                left_out[name] = "frozen"
            else:
                transposed, shards = isinstance(module, _TRANSPOSED), sharded(weight, name)
                sites[name] = Site(name, module, attribute, kind, _ones(weight), transposed, shards=shards)
    for glob in sorted(unused):
        warnings.warn(f"dense={glob!r} matches no prunable weight", stacklevel=3)
    return sorted(sites.values(), key=lambda site: order[site.name]), left_out


def _weights(module: nn.Module) -> Iterator[tuple[str, Kind]]:
    if isinstance(module, (*_CONV, *_TRANSPOSED)):
        yield "weight", "conv"
    elif isinstance(module, nn.Linear):
        yield "weight", "linear"
    elif isinstance(module, nn.MultiheadAttention):
        for attribute in _ATTENTION:
            yield attribute, "attention"


def matches_name(glob: str, name: str) -> bool:
    """Whether a glob means this parameter: by its own name or its module's, with or without wrapper prefixes."""
    clean = canonical(name)
    return any(fnmatch.fnmatchcase(n, glob) for n in (name, clean, clean.rpartition(".")[0]))


def _matches(selector: Selector, name: str, module_name: str, module: nn.Module) -> bool:
    if isinstance(selector, str):
        return matches_name(selector, name) or fnmatch.fnmatchcase(canonical(module_name + "."), selector + ".")
    if isinstance(selector, type):
        return isinstance(module, selector)
    raise ValueError(f"dense={selector!r} is neither a glob nor a module type")


def _ones(weight: Tensor) -> Tensor:
    return torch.ones_like(local(weight), dtype=torch.bool, requires_grad=False)
