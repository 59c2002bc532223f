"""Which weights of a model are prunable."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from rankprune.prunable import weights_of

from .layer import PrunableLayer, canonical
from .shards import local, sharded

Selector = str | type[nn.Module]
Selectors = Selector | Iterable[Selector]

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def find_layers(
    model: nn.Module, dense: Selectors = (), include: Selectors = ()
) -> tuple[list[PrunableLayer], dict[str, str]]:
    """The prunable weights in the order of `named_parameters()`, and all other matrices with the reason.

    Prunable are the weights of convolution, linear, attention and recurrent layers with more than one dimension, and
    what `include` names. `dense` leaves out. Both take globs (on the parameter's or the module's name) and module
    types. A tied weight is one layer, and dense where any of the modules that hold it is.

    Args:
        model: The network.
        dense: Weights to leave dense, by glob or by module type.
        include: Weights to prune that are not by default.
    """
    chosen = {"dense": _selectors("dense", dense), "include": _selectors("include", include)}
    unused = {which: set(selectors) for which, selectors in chosen.items()}
    owners = _owners(model)

    def named(which: str, weight: nn.Parameter) -> bool:
        matched = [d for d in chosen[which] if any(_matches(d, *owner) for owner in owners[id(weight)])]
        unused[which] -= set(matched)
        return bool(matched)

    layers: dict[str, PrunableLayer] = {}
    left_out: dict[str, str] = {}
    for module_name, module in model.named_modules():
        known_weights = {w.attribute: w for w in weights_of(module)}
        for attribute in known_weights.keys() - module._parameters.keys():
            own_name = f"{module_name}.{attribute}".lstrip(".")
            left_out[own_name] = "no parameter of its own: a parametrization or a hook computes it"
        for attribute, weight in module._parameters.items():
            if weight is None or (name := owners[id(weight)][0][0]) in layers:
                continue
            if attribute in known_weights and isinstance(weight, nn.UninitializedParameter):
                raise ValueError(f"{name} has no shape yet: run one batch through the model first")
            known = attribute in known_weights and weight.ndim > 1
            wanted = known or (weight.is_floating_point() and weight.ndim > 1 and named("include", weight))
            if not wanted and (not _is_matrix(weight) or isinstance(module, ParametrizationList)):
                continue  # a parametrized weight was listed with its layer
            if named("dense", weight):
                left_out[name] = "kept dense"
            elif not weight.numel():
                left_out[name] = "empty"
            elif not weight.requires_grad:
                left_out[name] = "frozen"
            elif not wanted:
                left_out.setdefault(name, _why_not(module, name))
            else:
                kind, transposed = known_weights[attribute][1:] if known else ("parameter", False)
                shards = sharded(weight, name)
                layers[name] = PrunableLayer(name, module, attribute, kind, _ones(weight), transposed, shards=shards)
                left_out.pop(name, None)  # another module that shares it is no layer
    for which, selectors in unused.items():
        for selector in sorted(repr(d) if isinstance(d, str) else d.__name__ for d in selectors):
            warnings.warn(f"{which}={selector} matches no prunable weight", stacklevel=4)
    _check_keys(layers.values())
    order = {held[0][0]: i for i, held in enumerate(owners.values())}
    return sorted(layers.values(), key=lambda layer: order[layer.name]), left_out


def survey(model: nn.Module, left_out: Iterable[str]) -> tuple[int, dict[str, tuple[int, ...]]]:
    """The number of parameters of the whole model, and the shapes of those left out.

    Args:
        model: The network.
        left_out: The parameters that are not pruned.
    """
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameters[name].shape) for name in left_out if name in parameters}
    return sum(p.numel() for p in parameters.values()), shapes


def _selectors(which: str, given: Selectors) -> list[Selector]:
    selectors = [given] if isinstance(given, (str, type)) else list(given)
    for selector in selectors:
        if not isinstance(selector, (str, type)):
            raise ValueError(f"{which}={selector!r} is neither a glob nor a module type")
    return selectors


def _is_matrix(weight: nn.Parameter) -> bool:
    """Whether at least two dimensions are larger than 1: a class token (1, 1, n) is a vector."""
    return not isinstance(weight, nn.UninitializedParameter) and sum(size > 1 for size in weight.shape) > 1


def _why_not(module: nn.Module, name: str) -> str:
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return f"an embedding, dense by default; include={name!r} prunes it"
    if isinstance(module, _NORMS):
        return "the scale of a norm"
    return f"a parameter of {type(module).__name__}, which is no known layer; include={name!r} prunes it"


def _owners(model: nn.Module) -> dict[int, list[tuple[str, nn.Module]]]:
    """All names of each parameter, that of `named_parameters()` first, with the module that holds it there."""
    found: dict[int, list[tuple[str, nn.Module]]] = {}
    for module_name, module in model.named_modules(remove_duplicate=False):
        for attribute, parameter in module._parameters.items():
            found.setdefault(id(parameter), []).append((f"{module_name}.{attribute}".lstrip("."), module))
    found.pop(id(None), None)
    return found


def _check_keys(layers: Iterable[PrunableLayer]) -> None:
    """Checkpoints use names without wrappers, so two weights must not share one."""
    names: dict[str, str] = {}
    for layer in layers:
        if (first := names.setdefault(layer.key, layer.name)) != layer.name:
            raise ValueError(f"{first} and {layer.name} are both {layer.key!r} without wrappers: rename a module")


def matches_name(glob: str, name: str) -> bool:
    """Whether a glob means this parameter: by its own name or its module's, with or without wrapper prefixes.

    Args:
        glob: A shell pattern.
        name: The name of a parameter.
    """
    clean = canonical(name)
    return any(fnmatch.fnmatchcase(n, glob) for n in (name, clean, clean.rpartition(".")[0]))


def _matches(selector: Selector, name: str, module: nn.Module) -> bool:
    return matches_name(selector, name) if isinstance(selector, str) else isinstance(module, selector)


def _ones(weight: Tensor) -> Tensor:
    return torch.ones_like(local(weight), dtype=torch.bool, requires_grad=False)
