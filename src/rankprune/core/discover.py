"""Finds the prunable weights of a model, and says why each other matrix is left out."""

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
    """The prunable weights in the order of `named_parameters()`, and why each other matrix is not pruned.

    Prunable are the weights of convolution, linear, attention and recurrent layers with more than one dimension, and
    those that `include` selects, less those that `dense` selects. Selectors are globs (on the name of the parameter or
    of its module) and module types. A tied weight is one layer, dense if `dense` selects any module that holds it.

    Args:
        model: The network.
        dense: Weights to leave dense, by glob or by module type.
        include: Weights to prune that are not pruned by default.
    """
    selectors = {"dense": _as_list("dense", dense), "include": _as_list("include", include)}
    unused = {argument: set(given) for argument, given in selectors.items()}
    owners = _owners(model)

    def selected(argument: str, weight: nn.Parameter) -> bool:
        matched = [s for s in selectors[argument] if any(_matches(s, *owner) for owner in owners[id(weight)])]
        unused[argument] -= set(matched)
        return bool(matched)

    layers: dict[str, PrunableLayer] = {}
    left_out: dict[str, str] = {}
    for module_name, module in model.named_modules():
        known_weights = {w.attribute: w for w in weights_of(module)}
        for attribute in known_weights.keys() - module._parameters.keys():
            name = f"{module_name}.{attribute}".lstrip(".")
            left_out[name] = "no parameter of its own: a parametrization or a hook computes it"
        for attribute, weight in module._parameters.items():
            if weight is None or (name := owners[id(weight)][0][0]) in layers:
                continue
            if attribute in known_weights and isinstance(weight, nn.UninitializedParameter):
                raise ValueError(f"{name} has no shape yet: run one batch through the model first")
            known = attribute in known_weights and weight.ndim > 1
            included = weight.is_floating_point() and weight.ndim > 1 and selected("include", weight)
            prunable = known or included
            if not prunable and (not _is_matrix(weight) or isinstance(module, ParametrizationList)):
                continue  # a parametrized weight was listed with its layer
            if selected("dense", weight):
                left_out[name] = "kept dense"
            elif not weight.numel():
                left_out[name] = "empty"
            elif not weight.requires_grad:
                left_out[name] = "frozen"
            elif not prunable:
                left_out.setdefault(name, _why_not(module, name))
            else:
                kind, transposed = known_weights[attribute][1:] if known else ("parameter", False)
                shards = sharded(weight, name)
                layers[name] = PrunableLayer(name, module, attribute, kind, _ones(weight), transposed, shards=shards)
                left_out.pop(name, None)  # listed before, by a module of another type that shares it
    for argument, unmatched in unused.items():
        for selector in sorted(repr(s) if isinstance(s, str) else s.__name__ for s in unmatched):
            warnings.warn(f"{argument}={selector} matches no prunable weight", stacklevel=4)
    _check_keys(layers.values())
    order = {names[0][0]: i for i, names in enumerate(owners.values())}
    return sorted(layers.values(), key=lambda layer: order[layer.name]), left_out


def survey(model: nn.Module, left_out: Iterable[str]) -> tuple[int, dict[str, tuple[int, ...]]]:
    """The number of parameters of the whole model, and the shapes of those that are left out.

    Args:
        model: The network.
        left_out: The parameters that are not pruned.
    """
    parameters = dict(model.named_parameters())
    shapes = {name: tuple(parameters[name].shape) for name in left_out if name in parameters}
    return sum(p.numel() for p in parameters.values()), shapes


def _as_list(argument: str, selectors: Selectors) -> list[Selector]:
    given = [selectors] if isinstance(selectors, (str, type)) else list(selectors)
    for selector in given:
        if not isinstance(selector, (str, type)):
            raise ValueError(f"{argument}={selector!r} is neither a glob nor a module type")
    return given


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
    """All names of each parameter, by its id: that of `named_parameters()` first, each with the module it is in."""
    owners: dict[int, list[tuple[str, nn.Module]]] = {}
    for module_name, module in model.named_modules(remove_duplicate=False):
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((f"{module_name}.{attribute}".lstrip("."), module))
    return owners


def _check_keys(layers: Iterable[PrunableLayer]) -> None:
    """Raise if two weights have the same name without wrappers, which is their name in checkpoints."""
    names: dict[str, str] = {}
    for layer in layers:
        if (first := names.setdefault(layer.key, layer.name)) != layer.name:
            raise ValueError(f"{first} and {layer.name} are both {layer.key!r} without wrappers: rename a module")


def matches_name(glob: str, name: str) -> bool:
    """Whether a glob matches a parameter: its own name or its module's, with or without wrapper prefixes.

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
