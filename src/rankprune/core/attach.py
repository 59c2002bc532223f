"""From the arguments of `attach` (a name, an object, a mapping) to groups of layers with checked settings."""

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
    """The model, and what a method may need beside its weights."""

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
        sources: The model, and what a method may need beside its weights.
        method: A name, a method object, or a mapping of globs to them.
        sparsity: The share of the weights to cut, for methods that have no sparsity of their own.
        total_steps: Optimizer steps of the training.
        dense: Weights to leave dense, by glob or by module type.
        seed: Of random masks and growth.
        extras: What composes with every method.
        hyper: Hyper-parameters, or mappings of them by name of a method or extra.
        include: Weights to prune that are not pruned by default.

    Returns:
        The groups, and the reason why each other parameter is left out, by name.

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
        matched = [layer for layer in layers if matches_name(glob, layer.name)]
        layers = [layer for layer in layers if layer not in matched]
        if not matched:
            raise ValueError(f"no prunable weight is left for {glob!r}: check the glob and the order of the mapping")
        spec, named_extras, settings = _split_extras(spec, hyper)
        configured, all_extras = as_method(spec, sparsity, settings), (*named_extras, *extras)
        for extra in all_extras:
            if not isinstance(extra, Extra):
                way_out = f"write {f'{configured.info.name}+{extra}'!r} or pass an object of rankprune.extras"
                raise ValueError(f"extras holds {extra!r}, which is no extra: {way_out}")
            extra.check(configured)
        groups.append(Group(configured, matched, total_steps, seed, all_extras, model, sources.data, sources.loss_fn))
    left_out |= {layer.name: "no method named for it" for layer in layers}
    for group in groups:
        _check(group)
    if any(group.method.budget == "macs" for group in groups):
        _set_costs(model, sources.example, groups)
    return groups, left_out


def make_report(groups: Sequence[Group], left_out: Mapping[str, str], title: str = "") -> Report:
    """Counts per layer, and their share of the whole model.

    Args:
        groups: The groups of the model.
        left_out: The reason why each other parameter is left out, by name.
        title: A line above the table.
    """
    model = groups[0].model
    assert model is not None
    return Report([row for g in groups for row in g.report_rows()], left_out, title, *survey(model, left_out))


def _split_extras(spec: Any, hyper: Mapping[str, Any]) -> tuple[Any, list[Extra], Mapping[str, Any]]:
    """Split "acdc+ham" into the method and the extras to add to it; `ham={"alpha": 100}` in `hyper` is for that extra.

    Returns the method (or the mapping that names it) without extras, the extras, and the remaining `hyper`.
    """
    options = {key: value for key, value in hyper.items() if isinstance(value, Mapping) and key in list_extras()}
    for extra, settings in options.items():
        create_extra(extra, **settings)  # its options are checked even if this method does not use it
    named = spec.get("method") if isinstance(spec, Mapping) else spec
    names: list[str] = []
    if isinstance(named, str):
        method, *names = named.split("+")
        spec = {**spec, "method": method} if isinstance(spec, Mapping) else method
    extras = [create_extra(name, **options.get(name, {})) for name in names]
    return spec, extras, {key: value for key, value in hyper.items() if key not in options}


def as_method(spec: Any, sparsity: float | None, hyper: Mapping[str, Any]) -> Method:
    """A new method object with a sparsity, from a name, a mapping of its fields or a method object.

    Args:
        spec: A name, a mapping with "method" and its fields, or a method object.
        sparsity: The sparsity, if `spec` has none.
        hyper: Hyper-parameters that were given beside it.

    Raises:
        ValueError: Something in it is unknown.
        TypeError: It is none of these.
    """
    if isinstance(spec, str):
        method: Method = create(method_info(spec).cls, settings_for(spec, hyper))
    elif isinstance(spec, Mapping):
        fields = dict(spec)
        if "method" not in fields:
            raise ValueError(f"{dict(spec)} names no method: add 'method'")
        name = fields.pop("method")
        method = create(method_info(name).cls, {**settings_for(name, hyper), **fields})
    elif isinstance(spec, Method):
        if beside := settings_for(spec.info.name, hyper):
            raise ValueError(f"{next(iter(beside))} goes into the method object itself, not beside it")
        method = spec
    else:
        raise TypeError(f"method={spec!r} is neither a name nor a method nor a mapping of globs to them")
    return replace(method, sparsity=method.sparsity if method.sparsity is not None else sparsity)


def _check(group: Group) -> None:
    """Raise for a setting of the method that is wrong, before anything is touched."""
    method, name = group.method, group.method.info.name
    check_sparsity(method.sparsity, optional=method.takes_zeros)
    if method.distribution not in budgets.DISTRIBUTIONS:
        raise ValueError(f"distribution={method.distribution!r} is unknown: use {', '.join(budgets.DISTRIBUTIONS)}")
    if method.budget not in ("weights", "macs"):
        raise ValueError(f"budget={method.budget!r} is unknown: use 'weights' or 'macs'")
    if method.budget == "macs" and method.distribution != "global":
        raise ValueError(f"budget='macs' needs distribution='global', {name} has {method.distribution!r}")
    given = {"data": group.data, "loss": group.loss_fn}
    if missing := sorted(need for need in method.info.needs & given.keys() if given[need] is None):
        raise ValueError(f"{name} needs {' and '.join(missing)}: pass data=batches and loss_fn=f(outputs, targets)")
    if method.sparsity is not None:
        _check_final_counts(group, method.sparsity)
    method.check()
    _check_timetable(group)


def _check_final_counts(group: Group, sparsity: float) -> None:
    """Raise if the final budget is too small for the layers or for their distribution."""
    total = sum(layer.numel for layer in group.layers)
    kept = budgets.kept(total, sparsity)
    if kept < len(group.layers):
        raise ValueError(
            f"sparsity={sparsity} leaves {kept} of {total} weights for {len(group.layers)} layers: "
            "each needs at least one, so ask for less"
        )
    if group.method.distribution not in ("global", "lamp"):  # the others follow from the shapes alone
        budgets.layer_densities([layer.shape for layer in group.layers], sparsity, group.method.distribution)


def _check_timetable(group: Group) -> None:
    """Raise if the run ends before the sparsity is reached; warn if it has few updates."""
    name, steps = group.method.info.name, group.method.updates(group.total_steps)
    reached = group.method.plan.reached(replace(group.method.run(group.total_steps), steps=steps))
    if reached > group.total_steps:
        raise ValueError(
            f"{name} reaches its sparsity at step {reached}, after total_steps={group.total_steps}: "
            "let it prune earlier or train longer"
        )
    if group.method.plan.periodic and len(steps) < FEW_UPDATES:
        warnings.warn(
            f"{name} updates its masks {len(steps)} times in {group.total_steps} steps (every={steps[0]}): with "
            f"fewer than {FEW_UPDATES} updates, each removes many weights at once; lower every or train longer",
            stacklevel=5,
        )


def check_sparsity(sparsity: Any, optional: bool = False) -> None:
    """Raise unless this is a number between 0 and 1.

    Args:
        sparsity: The share of the weights to cut.
        optional: Whether None is allowed.

    Raises:
        ValueError: It is something else.
    """
    if sparsity is None and optional:
        return
    if isinstance(sparsity, Mapping) or callable(sparsity):
        raise ValueError(f"sparsity={sparsity!r} is not one number: for several pass a mapping of globs to methods")
    if isinstance(sparsity, bool) or not isinstance(sparsity, (int, float)) or not 0.0 < sparsity < 1.0:
        raise ValueError(f"sparsity={sparsity!r} is not between 0 and 1: 0.98 leaves 2 % of the weights")


def _set_costs(model: nn.Module, example: Any, groups: Sequence[Group]) -> None:
    """Set the cost of one weight of each layer in MACs: the number of positions it is applied at."""
    if example is None:
        raise ValueError("budget='macs' needs example=, an input of the model, to count with")
    from .macs import positions

    costs = positions(model, example)
    for group in groups:
        if group.method.budget != "macs":
            continue
        for layer in group.layers:
            if not costs.get(layer.name):
                raise ValueError(f"{layer.name} took no part in the example's forward pass: leave it out with dense=")
            layer.cost = costs[layer.name]
        sparsity, least = group.method.sparsity, sum(layer.cost for layer in group.layers)
        if sparsity is not None and budgets.kept(group.total, sparsity) < least:
            raise ValueError(
                f"sparsity={sparsity} leaves {budgets.kept(group.total, sparsity)} of {group.total} MACs for "
                f"{len(group.layers)} layers, where each needs at least one weight ({least} MACs in all): ask for less"
            )
