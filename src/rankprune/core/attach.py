"""From what a user says (a name, an object, a mapping) to groups of layers with checked budgets."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from . import budget as budgets
from .discover import find_layers, matches_name, survey
from .method import Extra, Group, Method
from .registry import create_extra, list_extras, method_info, settings_for
from .schedules import check_count
from .settings import create
from .summary import Report

FEW_UPDATES = 20  # below this, attach warns


class Sources(NamedTuple):
    """What a method may draw on beside the weights."""

    model: nn.Module
    data: Iterable[Any] | None = None
    loss_fn: Callable[..., Tensor] | None = None
    example: Any = None


def build_groups(
    sources: Sources,
    method: Any,
    sparsity: float | None,
    total_steps: int,
    dense: Any,
    seed: int,
    extras: Sequence[Extra],
    hyper: Mapping[str, Any],
    include: Any = (),
) -> tuple[list[Group], dict[str, str]]:
    """Make the groups of layers that a sparsifier works on, each with its method and checked settings.

    Args:
        sources: The model, and what a method may draw on beside its weights.
        method: A name, a method object, or a mapping of globs to them.
        sparsity: The share of the weights to cut, where a method does not say.
        total_steps: Optimizer steps of the training.
        dense: Weights to leave dense, by glob or by module type.
        seed: Of random masks and growth.
        extras: What composes with every method.
        hyper: Hyper-parameters, or mappings of them by name of a method or extra.
        include: Weights to prune that are not by default.

    Returns:
        The groups, and why each parameter that is not pruned is left out.

    Raises:
        ValueError: A setting is wrong, or there is nothing to prune.
    """
    model = sources.model
    check_count(total_steps, "total_steps", "optimizer steps")
    if isinstance(method, Method) and None not in (sparsity, method.sparsity) and sparsity != method.sparsity:
        raise ValueError(
            f"sparsity={sparsity} is given beside a method object with sparsity={method.sparsity}: give one of them"
        )
    layers, left_out = find_layers(model, dense, include)
    if not layers:
        why = f"all are left out ({', '.join(sorted(set(left_out.values())))})" if left_out else "build it of them"
        raise ValueError(f"{type(model).__name__} has no weight of a known layer to prune: {why}")
    rules: Mapping[str, Any] = method if isinstance(method, Mapping) else {"*": method}
    if not rules:
        raise ValueError(f"method={method} names no method: give a glob and a method to each part of the model")
    groups = []
    for glob, spec in rules.items():
        mine = [s for s in layers if matches_name(glob, s.name)]
        layers = [s for s in layers if s not in mine]
        if not mine:
            raise ValueError(f"no prunable weight is left for {glob!r}: check the glob and the order of the mapping")
        spec, named, own = _split_extras(spec, hyper)
        made, added = as_method(spec, sparsity, own), (*named, *extras)
        for extra in added:
            if not isinstance(extra, Extra):
                way_out = f"write {f'{made.info.name}+{extra}'!r} or pass an object of rankprune.extras"
                raise ValueError(f"extras holds {extra!r}, which is no extra: {way_out}")
            extra.check(made)
        groups.append(Group(made, mine, total_steps, seed, added, model, sources.data, sources.loss_fn))
    left_out |= {layer.name: "no method named for it" for layer in layers}
    for group in groups:
        _check(group)
    if any(group.method.budget == "macs" for group in groups):
        _set_costs(model, sources.example, groups)
    return groups, left_out


def make_report(groups: Sequence[Group], left_out: Mapping[str, str], title: str = "") -> Report:
    """Counts per layer, and how much of the whole model they are.

    Args:
        groups: The groups of the model.
        left_out: Why each parameter that is not pruned is left out.
        title: A line above the table.
    """
    model = groups[0].model
    assert model is not None
    return Report([row for g in groups for row in g.report_rows()], left_out, title, *survey(model, left_out))


def _split_extras(spec: Any, hyper: Mapping[str, Any]) -> tuple[Any, list[Extra], Mapping[str, Any]]:
    """A name such as "acdc+ham" is a method and the extras to add to it; `ham={"alpha": 100}` is for that extra."""
    options = {key: value for key, value in hyper.items() if isinstance(value, Mapping) and key in list_extras()}
    for extra, settings in options.items():
        create_extra(extra, **settings)  # checked also where this method has no such extra
    name, *extras = spec.split("+") if isinstance(spec, str) else [spec]
    made = [create_extra(extra, **options.get(extra, {})) for extra in extras]
    return name, made, {key: value for key, value in hyper.items() if key not in options}


def as_method(spec: Any, sparsity: float | None, hyper: Mapping[str, Any]) -> Method:
    """A method object of our own, with its sparsity, from a name, a mapping of its fields or an object.

    Args:
        spec: A name, a mapping with "method" and its fields, or a method object.
        sparsity: The sparsity, where `spec` does not say.
        hyper: Hyper-parameters that were given beside it.

    Raises:
        ValueError: Something in it is unknown.
        TypeError: It is none of these.
    """
    if isinstance(spec, str):
        made: Method = create(method_info(spec).cls, settings_for(spec, hyper))
    elif isinstance(spec, Mapping):
        fields = dict(spec)
        if "method" not in fields:
            raise ValueError(f"{dict(spec)} names no method: add 'method'")
        name = fields.pop("method")
        made = create(method_info(name).cls, {**settings_for(name, hyper), **fields})
    elif isinstance(spec, Method):
        if own := settings_for(spec.info.name, hyper):
            raise ValueError(f"{next(iter(own))} goes into the method object itself, not beside it")
        made = spec
    else:
        raise TypeError(f"method={spec!r} is neither a name nor a method nor a mapping of globs to them")
    return replace(made, sparsity=made.sparsity if made.sparsity is not None else sparsity)


def _check(group: Group) -> None:
    """All that can be wrong with a method's settings, before anything is touched."""
    method, name = group.method, group.method.info.name
    _check_sparsity(method.sparsity, optional=method.takes_zeros)
    if method.distribution not in budgets.DISTRIBUTIONS:
        raise ValueError(f"distribution={method.distribution!r} is unknown: use {', '.join(budgets.DISTRIBUTIONS)}")
    if method.budget not in ("weights", "macs"):
        raise ValueError(f"budget={method.budget!r} is unknown: use 'weights' or 'macs'")
    if method.budget == "macs" and method.distribution != "global":
        raise ValueError(f"budget='macs' needs distribution='global', {name} has {method.distribution!r}")
    given = {"data": group.data, "loss": group.loss_fn}
    if missing := sorted(need for need in method.info.needs & given.keys() if given[need] is None):
        raise ValueError(f"{name} needs {' and '.join(missing)}: pass data=batches and loss_fn=f(outputs, targets)")
    total = sum(layer.numel for layer in group.layers)
    if method.sparsity is not None and budgets.kept(total, method.sparsity) < len(group.layers):
        raise ValueError(
            f"sparsity={method.sparsity} leaves {budgets.kept(total, method.sparsity)} of {total} weights for "
            f"{len(group.layers)} layers: each needs at least one, so ask for less"
        )
    method.check()
    steps = method.updates(group.total_steps)
    if method.plan.periodic and len(steps) < FEW_UPDATES:
        warnings.warn(
            f"{name} updates its masks {len(steps)} times in {group.total_steps} steps (every={steps[0]}): fewer than "
            f"{FEW_UPDATES} updates cut in large jumps or hardly explore; lower every or train longer",
            stacklevel=4,
        )


def _check_sparsity(sparsity: Any, optional: bool = False) -> None:
    if sparsity is None and optional:
        return
    if isinstance(sparsity, Mapping) or callable(sparsity):
        raise ValueError(f"sparsity={sparsity!r} is not one number: for several pass a mapping of globs to methods")
    if isinstance(sparsity, bool) or not isinstance(sparsity, (int, float)) or not 0.0 < sparsity < 1.0:
        raise ValueError(f"sparsity={sparsity!r} is not between 0 and 1: 0.98 leaves 2 % of the weights")


def _set_costs(model: nn.Module, example: Any, groups: Sequence[Group]) -> None:
    """What one weight costs in MACs: the output positions it is used at."""
    if example is None:
        raise ValueError("budget='macs' needs example=, an input of the model, to count with")
    from .macs import positions

    found = positions(model, example)
    for layer in [s for g in groups if g.method.budget == "macs" for s in g.layers]:
        if not found.get(layer.name):
            raise ValueError(f"{layer.name} took no part in the example's forward pass: leave it out with dense=")
        layer.cost = found[layer.name]
