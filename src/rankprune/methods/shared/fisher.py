"""The block-diagonal empirical Fisher F = λI + (1/m) Σ g gᵀ: its gradients, and its inverse by Woodbury's identity."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from rankprune.core.method import Group, PrunableLayer

from .probe import agree, batches, probing

log = logging.getLogger("rankprune")

_SAMPLES = 64  # that go through the network at once
_ENTRIES = 1 << 23  # of a double temporary: 64 MB


def fisher_gradients(group: Group, masks: Mapping[PrunableLayer, Tensor], count: int, minibatch: int) -> list[Tensor]:
    """Up to `count` gradients of the mean loss of `minibatch` samples each, as rows, under the masks, by layer.

    Args:
        group: The layers that the method works on.
        masks: The masks to measure under, by layer.
        count: How many gradients.
        minibatch: Samples that each gradient is the mean of.
    """
    rows = [layer.weight.new_zeros(count, layer.numel) for layer in masks]
    filled = 0
    for found in _gradients(group, masks, count, minibatch):
        for row, gradient in zip(rows, found):
            row[filled : filled + len(gradient)] = gradient
        filled += len(found[0])
    agree(group, rows)
    return [row[:filled] for row in rows]


def fisher_blocks(
    group: Group, masks: Mapping[PrunableLayer, Tensor], count: int, minibatch: int, block: int
) -> list[Tensor]:
    """The blocks of mean g gᵀ over the same gradients, in double precision: blocks x block x block, by layer.

    They take 8 · block bytes for each weight whatever the number of gradients, which are not kept.

    Args:
        group: The layers that the method works on.
        masks: The masks to measure under, by layer.
        count: How many gradients.
        minibatch: Samples that each gradient is the mean of.
        block: Consecutive weights whose curvature is taken together.
    """
    sums: list[Tensor] = []
    for layer in masks:
        size = min(block, layer.numel)
        sums.append(layer.weight.new_zeros(-(-layer.numel // size), size, size, dtype=torch.float64))
    filled = 0
    for found in _gradients(group, masks, count, minibatch):
        for total, gradient in zip(sums, found):
            start = 0
            for g in _blocks(gradient, block):
                total[start : start + len(g)].baddbmm_(g.mT, g)
                start += len(g)
        filled += len(found[0])
    for total in sums:
        total /= filled
    agree(group, sums)
    return sums


def _gradients(
    group: Group, masks: Mapping[PrunableLayer, Tensor], count: int, minibatch: int
) -> Iterator[list[Tensor]]:
    """The gradients a few minibatches at a time, as rows by layer, in eval mode, differentiated together by `vmap`."""
    filled = 0
    with probing(group, training=False) as model:
        fixed = {name: p.detach() for name, p in model.named_parameters()}
        names = {id(p): name for name, p in model.named_parameters()}
        mine = {names[id(layer.parameter)]: layer.parameter.detach() for layer in masks}

        def loss(some: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            assert group.loss_fn is not None
            return group.loss_fn(functional_call(model, {**fixed, **some}, (inputs,)), targets)

        for inputs, targets in batches(group):
            size = min(minibatch, len(inputs))
            number = min(len(inputs) // size, count - filled)
            whole = [t[: number * size].unflatten(0, (number, size)) for t in (inputs, targets)]
            for parts in zip(*(t.split(max(1, _SAMPLES // size)) for t in whole)):
                with torch.no_grad():
                    found = _each(grad(loss), mine, parts)
                    yield [g.mul_(mask).flatten(1) for g, mask in zip(found.values(), masks.values())]
            filled += number
            if filled == count:
                break


def _each(gradient: Callable[..., Any], mine: dict[str, Tensor], parts: Sequence[Tensor]) -> dict[str, Tensor]:
    """The gradient of each minibatch, stacked; one after the other where vmap does not support the network."""
    try:
        return vmap(gradient, in_dims=(None, 0, 0))(mine, *parts)
    except RuntimeError as error:
        log.warning("gradients are taken one by one, since vmap fails on this model: %s", str(error).split("\n")[0])
        found = [gradient(mine, inputs, targets) for inputs, targets in zip(*parts)]
        return {name: torch.stack([f[name] for f in found]) for name in mine}


def inverse_diagonal(rows: Tensor, damping: float, block: int) -> Tensor:
    """The diagonal of F⁻¹, in double precision.

    Args:
        rows: Gradients, (count, weights).
        damping: λ, added to the diagonal of F.
        block: Consecutive weights whose curvature is taken together.
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
    """F⁻¹ times a vector, in double precision.

    Args:
        rows: Gradients, (count, weights).
        vector: A value for each weight.
        damping: λ, added to the diagonal of F.
        block: Consecutive weights whose curvature is taken together.
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
    """Consecutive values (of the last dimension) in blocks; the last is filled with zeros, which F does not couple.

    Args:
        values: The values, (..., n).
        block: The length of a block.
    """
    block = min(block, values.shape[-1])
    return torch.nn.functional.pad(values, (0, -values.shape[-1] % block)).unflatten(-1, (-1, block))


def _cut(rows: Tensor, block: int) -> Tensor:
    """m x n as blocks x m x block, of consecutive columns."""
    return in_blocks(rows, block).transpose(0, 1)


def _blocks(rows: Tensor, block: int) -> Iterator[Tensor]:
    """The blocks in double precision, as many at a time as the bound on temporaries allows."""
    cut = _cut(rows, block)
    size = cut.shape[-2] * cut.shape[-1] + min(cut.shape[-2:]) ** 2
    yield from (part.double() for part in cut.split(max(1, _ENTRIES // size)))


def _small_root(g: Tensor, damping: float) -> Tensor:
    """Cholesky factor of λmI + GGᵀ, m x m."""
    small = g @ g.mT
    small.diagonal(dim1=-2, dim2=-1).add_(damping * g.shape[-2])
    return torch.linalg.cholesky(small)


def _root(g: Tensor, damping: float) -> Tensor:
    """Cholesky factor of F = λI + GᵀG/m itself."""
    whole = g.mT @ g / g.shape[-2]
    whole.diagonal(dim1=-2, dim2=-1).add_(damping)
    return torch.linalg.cholesky(whole)
