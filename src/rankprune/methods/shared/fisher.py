"""The block-diagonal empirical Fisher F = λI + (1/m) Σ g gᵀ: its gradients, and its inverse by Woodbury's identity."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.func import grad as gradient_of

from rankprune.core.method import Group, PrunableLayer

from .probe import average_over_ranks, batches, probing

log = logging.getLogger("rankprune")

_SAMPLES = 64  # samples per forward pass
_ENTRIES = 1 << 23  # of a temporary in float64: 64 MB


def fisher_gradients(group: Group, masks: Mapping[PrunableLayer, Tensor], count: int, minibatch: int) -> list[Tensor]:
    """Up to `count` gradients of the mean loss of `minibatch` samples each, masked: (count, weights) for each layer.

    Args:
        group: The layers that the method works on.
        masks: The layers to measure, with their masks.
        count: How many gradients.
        minibatch: Samples per gradient.
    """
    rows = [layer.weight.new_zeros(count, layer.numel) for layer in masks]
    filled = 0
    for grads in _gradients(group, masks, count, minibatch):
        for row, grad in zip(rows, grads):
            row[filled : filled + len(grad)] = grad
        filled += len(grads[0])
    average_over_ranks(group, rows)
    return [row[:filled] for row in rows]


def fisher_blocks(
    group: Group, masks: Mapping[PrunableLayer, Tensor], count: int, minibatch: int, block: int
) -> list[Tensor]:
    """The diagonal blocks of mean g gᵀ over the same gradients, in float64: (blocks, size, size) for each layer.

    They take 8 · block bytes per weight for any number of gradients, which are not kept.

    Args:
        group: The layers that the method works on.
        masks: The layers to measure, with their masks.
        count: How many gradients.
        minibatch: Samples per gradient.
        block: Consecutive weights per block.
    """
    sums: list[Tensor] = []
    for layer in masks:
        size = min(block, layer.numel)
        sums.append(layer.weight.new_zeros(-(-layer.numel // size), size, size, dtype=torch.float64))
    filled = 0
    for grads in _gradients(group, masks, count, minibatch):
        for total, grad in zip(sums, grads):
            start = 0
            for g in _blocks(grad, block):
                total[start : start + len(g)].baddbmm_(g.mT, g)
                start += len(g)
        filled += len(grads[0])
    for total in sums:
        total /= filled
    average_over_ranks(group, sums)
    return sums


def _gradients(
    group: Group, masks: Mapping[PrunableLayer, Tensor], count: int, minibatch: int
) -> Iterator[list[Tensor]]:
    """The gradients of a few minibatches at a time, (minibatches, weights) for each layer, in eval mode, by `vmap`."""
    filled = 0
    with probing(group, training=False) as model:
        fixed = {name: p.detach() for name, p in model.named_parameters()}
        names = {id(p): name for name, p in model.named_parameters()}
        measured = {names[id(layer.parameter)]: layer.parameter.detach() for layer in masks}

        def loss(weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            assert group.loss_fn is not None
            return group.loss_fn(functional_call(model, {**fixed, **weights}, (inputs,)), targets)

        for inputs, targets in batches(group):
            size = min(minibatch, len(inputs))
            number = min(len(inputs) // size, count - filled)
            whole = [t[: number * size].unflatten(0, (number, size)) for t in (inputs, targets)]
            for parts in zip(*(t.split(max(1, _SAMPLES // size)) for t in whole)):
                with torch.no_grad():
                    grads = _per_minibatch(gradient_of(loss), measured, parts)
                    yield [g.mul_(mask).flatten(1) for g, mask in zip(grads.values(), masks.values())]
            filled += number
            if filled == count:
                break


def _per_minibatch(
    gradient: Callable[..., Any], weights: dict[str, Tensor], parts: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The gradient of each minibatch, stacked; computed one by one if vmap does not support the network."""
    try:
        return vmap(gradient, in_dims=(None, 0, 0))(weights, *parts)
    except RuntimeError as error:
        log.warning("gradients are taken one by one, since vmap fails on this model: %s", str(error).split("\n")[0])
        grads = [gradient(weights, inputs, targets) for inputs, targets in zip(*parts)]
        return {name: torch.stack([g[name] for g in grads]) for name in weights}


def inverse_diagonal(rows: Tensor, damping: float, block: int) -> Tensor:
    """The diagonal of F⁻¹, in float64.

    Args:
        rows: Gradients, (count, weights).
        damping: λ, added to the diagonal of F.
        block: Consecutive weights per block.
    """
    pieces = []
    for g in _blocks(rows, block):
        m, size = g.shape[-2:]
        if m <= size:  # F⁻¹ = (I - Gᵀ(λmI + GGᵀ)⁻¹G)/λ
            root = torch.linalg.solve_triangular(_small_root(g, damping), g, upper=False)
            pieces.append((1 - root.square().sum(-2)) / damping)
        else:
            inverse = torch.cholesky_inverse(_root(g, damping))
            pieces.append(inverse.diagonal(dim1=-2, dim2=-1))
    return torch.cat(pieces).flatten()[: rows.shape[1]]


def inverse_product(rows: Tensor, vector: Tensor, damping: float, block: int) -> Tensor:
    """F⁻¹ times a vector, in float64.

    Args:
        rows: Gradients, (count, weights).
        vector: A value for each weight.
        damping: λ, added to the diagonal of F.
        block: Consecutive weights per block.
    """
    pieces = []
    columns = _cut(vector.unsqueeze(0), block).transpose(-2, -1)
    for g in _blocks(rows, block):
        v, columns = columns[: len(g)].double(), columns[len(g) :]
        if g.shape[-2] <= g.shape[-1]:
            pieces.append((v - g.mT @ torch.cholesky_solve(g @ v, _small_root(g, damping))) / damping)
        else:
            pieces.append(torch.cholesky_solve(v, _root(g, damping)))
    return torch.cat(pieces).flatten()[: rows.shape[1]]


def in_blocks(values: Tensor, block: int) -> Tensor:
    """Consecutive values in blocks, (..., blocks, block); the last is padded with zeros, which F does not couple.

    Args:
        values: The values, (..., n).
        block: The length of a block.
    """
    block = min(block, values.shape[-1])
    return torch.nn.functional.pad(values, (0, -values.shape[-1] % block)).unflatten(-1, (-1, block))


def _cut(rows: Tensor, block: int) -> Tensor:
    """(m, n) as (blocks, m, block), by consecutive columns."""
    return in_blocks(rows, block).transpose(0, 1)


def _blocks(rows: Tensor, block: int) -> Iterator[Tensor]:
    """The blocks in float64, as many at a time as the bound on temporaries allows."""
    cut = _cut(rows, block)
    size = cut.shape[-2] * cut.shape[-1] + min(cut.shape[-2:]) ** 2
    yield from (part.double() for part in cut.split(max(1, _ENTRIES // size)))


def _small_root(g: Tensor, damping: float) -> Tensor:
    """Cholesky factor of λmI + GGᵀ, (m, m)."""
    gram = g @ g.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(damping * g.shape[-2])
    return torch.linalg.cholesky(gram)


def _root(g: Tensor, damping: float) -> Tensor:
    """Cholesky factor of F = λI + GᵀG/m itself, (block, block)."""
    fisher = g.mT @ g / g.shape[-2]
    fisher.diagonal(dim1=-2, dim2=-1).add_(damping)
    return torch.linalg.cholesky(fisher)
