"""What needs no training loop: pruning at once, sensitivity of the layers, recalibration of BatchNorm."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from .attach import Sources, as_method, build_groups, check_sparsity, make_report
from .budget import kept
from .layer import PrunableLayer
from .method import Method, Score
from .plan import AtOnce
from .select import keep_largest
from .summary import Report


@torch.no_grad()
def prune(
    model: nn.Module,
    method: str | Method = "lamp",
    *,
    sparsity: float,
    distribution: str | None = None,
    seed: int = 0,
    dense: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
    include: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
    data: Iterable[Any] | None = None,
    loss_fn: Callable[..., Tensor] | None = None,
) -> Report:
    """Prune the model in place, at once. To train on with the zeros kept, attach "static".

    Args:
        model: The network; its weights are changed.
        method: A name, or a configured method, that can prune without training. The default cuts by magnitude with
            LAMP's counts per layer, as one global threshold can empty whole layers.
        sparsity: The share of the prunable weights to cut.
        distribution: How layers share the budget; None: the method's own.
        seed: Of random scores.
        dense: Weights to leave dense, by glob or by module type.
        include: Weights to prune that are not pruned by default, by glob or by module type.
        data: Batches (inputs, targets), for methods whose `needs` name "data".
        loss_fn: `loss_fn(outputs, targets)`, for methods whose `needs` name "loss".

    Returns:
        The weights kept per layer; prints as a table.

    Raises:
        ValueError: The method prunes while training, or a setting is wrong.

    Example:
        print(rp.prune(model, sparsity=0.9))
    """
    hyper = {} if distribution is None else {"distribution": distribution}
    configured = as_method(method, sparsity, hyper)
    name = configured.info.name
    if not isinstance(configured, Score) or not configured.plan.at_once:
        raise ValueError(f"{name} prunes while training: use rankprune.attach(model, optimizer, {name!r}, …)")
    groups, left_out = build_groups(
        Sources(model, data, loss_fn), replace(configured, plan=AtOnce()), sparsity=sparsity, total_steps=1,
        dense=dense, seed=seed, extras=(), hyper={}, include=include,
    )  # fmt: skip
    (group,) = groups
    group.start()
    for layer in group.layers:
        layer.apply_mask(layer.weight)
    report = make_report(groups, left_out)
    for warning in report.warnings:
        warnings.warn(warning, stacklevel=3)
    zeros = report.kept - sum(layer.count(layer.weight) for layer in group.layers)
    if zeros:
        already = f"{zeros:,} of the {report.kept:,} weights kept are 0, because the model was sparser than that before"
        warnings.warn(already, stacklevel=3)
    return report


@torch.no_grad()
def sensitivity(
    model: nn.Module,
    evaluate: Callable[[nn.Module], float],
    sparsities: Sequence[float] = (0.5, 0.8, 0.9, 0.95, 0.98),
    dense: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
) -> dict[str, dict[float, float]]:
    """Evaluate the model with one layer at a time pruned by magnitude; the model is left as it was.

    Args:
        model: The network.
        evaluate: Called with the model; returns a number such as its accuracy.
        sparsities: The sparsities to try in each layer; 0 is the dense model.
        dense: Weights to leave out, by glob or by module type.

    Returns:
        What `evaluate` returned, by layer and sparsity.

    Raises:
        ValueError: A sparsity is not between 0 and 1.
    """
    for sparsity in sparsities:
        if sparsity != 0:
            check_sparsity(sparsity)
    groups, _ = build_groups(
        Sources(model), "magnitude", sparsity=0.5, total_steps=1, dense=dense, seed=0, extras=(), hyper={}
    )
    return {
        layer.name: {sparsity: _evaluate_pruned(model, layer, sparsity, evaluate) for sparsity in sparsities}
        for layer in groups[0].layers
    }


def _evaluate_pruned(
    model: nn.Module, layer: PrunableLayer, sparsity: float, evaluate: Callable[[nn.Module], float]
) -> float:
    """What `evaluate` returns while one layer is pruned."""
    before = layer.weight.clone()
    try:
        layer.mask = keep_largest(before.abs(), max(1, kept(layer.numel, sparsity)), shards=layer.shards)
        layer.apply_mask(layer.weight)
        return float(evaluate(model))
    finally:
        layer.weight.copy_(before)


@torch.no_grad()
def recalibrate(model: nn.Module, loader: Iterable[Any], batches: int | None = None) -> None:
    """Re-estimate the running statistics of BatchNorm as plain averages over the batches of a loader.

    Args:
        model: The network; its BatchNorm buffers are changed.
        loader: Batches: inputs, or (inputs, …).
        batches: How many to use; None: all.

    Raises:
        ValueError: The loader gave no batch.
    """
    rest = islice(loader, batches)
    first = list(islice(rest, 1))  # read before anything is reset
    if not first:
        raise ValueError(f"the loader gave no batch (batches={batches}) to average over: pass one that is not used up")
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    modes = {module: module.training for module in model.modules()}
    momenta = {norm: norm.momentum for norm in norms}
    device = next(model.parameters()).device
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # None: the cumulative average
        norm.train()
    try:
        for batch in chain(first, rest):
            inputs = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(inputs.to(device))
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
        for module, training in modes.items():
            module.training = training
