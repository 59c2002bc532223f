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


def find_sites(model: nn.Module, dense: Selector | Iterable[Selector] = ()) -> tuple[list[Site], dict[str, str]]:
    """The prunable weights in the order of `named_parameters()`, and those left out with the reason.

    Prunable are the weights of Conv*, Linear and MultiheadAttention with more than one dimension. `dense` leaves out by
    glob (on the parameter's or the module's name) or by module type. A tied weight is one site, and dense where any of
    the modules that hold it is.
    """
    dense = [dense] if isinstance(dense, (str, type)) else list(dense)
    owners = _owners(model)
    order = {held[0][0]: i for i, held in enumerate(owners.values())}
    sites: dict[str, Site] = {}
    left_out: dict[str, str] = {}
    unused = set(dense)
    for module_name, module in model.named_modules():
        for attribute, kind in _weights(module):
            own_name = f"{module_name}.{attribute}".lstrip(".")
            if attribute not in module._parameters:
                left_out[own_name] = "no parameter of its own: a parametrization or a hook computes it"
                continue
            weight = module._parameters[attribute]
            if weight is None or (name := owners[id(weight)][0][0]) in sites:
                continue
            matched = [d for d in dense if any(_matches(d, *owner) for owner in owners[id(weight)])]
            unused -= set(matched)
            if matched:
                left_out[name] = "kept dense"
            elif isinstance(weight, nn.UninitializedParameter):
                raise ValueError(f"{own_name} has no shape yet: run one batch through the model first")
            elif weight.ndim < 2:
                continue
            elif not weight.numel():
                left_out[name] = "empty"
            elif not weight.requires_grad:
                left_out[name] = "frozen"
            else:
                transposed, shards = isinstance(module, _TRANSPOSED), sharded(weight, name)
                sites[name] = Site(name, module, attribute, kind, _ones(weight), transposed, shards=shards)
    for selector in sorted(repr(d) if isinstance(d, str) else d.__name__ for d in unused):
        warnings.warn(f"dense={selector} matches no prunable weight", stacklevel=4)
    _check_keys(sites.values())
    return sorted(sites.values(), key=lambda site: order[site.name]), left_out


def _owners(model: nn.Module) -> dict[int, list[tuple[str, nn.Module]]]:
    """The names each parameter goes by, the first that of `named_parameters()`, and the module that holds it there."""
    found: dict[int, list[tuple[str, nn.Module]]] = {}
    for module_name, module in model.named_modules(remove_duplicate=False):
        for attribute, parameter in module._parameters.items():
            found.setdefault(id(parameter), []).append((f"{module_name}.{attribute}".lstrip("."), module))
    found.pop(id(None), None)
    return found


def _check_keys(sites: Iterable[Site]) -> None:
    """Checkpoints go by names without wrappers: two weights must not share one."""
    names: dict[str, str] = {}
    for site in sites:
        if (first := names.setdefault(site.key, site.name)) != site.name:
            raise ValueError(f"{first} and {site.name} are both {site.key!r} without wrappers: rename a module")


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


def _matches(selector: Selector, name: str, module: nn.Module) -> bool:
    if isinstance(selector, str):
        return matches_name(selector, name)
    if isinstance(selector, type):
        return isinstance(module, selector)
    raise ValueError(f"dense={selector!r} is neither a glob nor a module type")


def _ones(weight: Tensor) -> Tensor:
    return torch.ones_like(local(weight), dtype=torch.bool, requires_grad=False)
