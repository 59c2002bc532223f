"""Optimal brain surgery one weight at a time, in many blocks at once: what a removal costs, and how others move."""

from __future__ import annotations

import torch
from torch import Tensor

from .fisher import in_blocks

_ENTRIES = 1 << 23  # of a double temporary: 64 MB


def removal_costs(fisher: Tensor, weight: Tensor, active: Tensor, damping: float) -> Tensor:
    """The loss that has been added, by the quadratic model, when greedy removal has just taken each weight; flat.

    `fisher` is blocks x size x size, undamped; `weight` and `active` are flat. In every block the weight with the least
    w²/(2 H_qq), H the inverse of the block, goes next; the others move by -(w_q/H_qq) H_q, and the inverse becomes that
    of what is left, H - H_q H_qᵀ/H_qq (Frantar & Alistarh 2022, lemma 1). The sum of the costs so far is what the
    removed one is given, so that a threshold on it cuts each block's sequence at one place. Inactive ones cost 0.

    Args:
        fisher: The Fisher matrix in blocks, (blocks, block, block).
        weight: The weights, flat.
        active: Which of them are not cut yet, flat.
        damping: λ, added to the diagonal.
    """
    size = fisher.shape[-1]
    pieces = []
    step = max(1, _ENTRIES // size**2)
    for f, w, on in zip(fisher.split(step), in_blocks(weight, size).split(step), in_blocks(active, size).split(step)):
        pieces.append(_eliminate(_damped_inverse(f, damping), w.double(), on))
    return torch.cat(pieces).flatten()[: weight.numel()]


def removal_change(fisher: Tensor, weight: Tensor, cut: Tensor, damping: float) -> Tensor:
    """What to subtract from the weights when those in `cut` are removed together; flat.

    The best the others can do, w_S + F_SS⁻¹ F_SQ w_Q with Q cut and S not. It is where one removal after the other ends
    too, in any order: each is the optimum given those before it.

    Args:
        fisher: The Fisher matrix in blocks, (blocks, block, block).
        weight: The weights, flat.
        cut: Which of them are removed, flat.
        damping: λ, added to the diagonal.
    """
    size = fisher.shape[-1]
    pieces = []
    step = max(1, _ENTRIES // size**2)
    for f, w, out in zip(fisher.split(step), in_blocks(weight, size).split(step), in_blocks(cut, size).split(step)):
        gone = torch.where(out, w.double(), 0.0)
        force = torch.where(out, 0.0, (f @ gone.unsqueeze(-1)).squeeze(-1))
        rest = f.masked_fill(out.unsqueeze(-1) | out.unsqueeze(-2), 0.0)  # where nothing is left but the damping
        moved = torch.cholesky_solve(force.unsqueeze(-1), _damped_root(rest, damping)).squeeze(-1)
        pieces.append(gone - moved)
    return torch.cat(pieces).flatten()[: weight.numel()]


def _damped_root(fisher: Tensor, damping: float) -> Tensor:
    damped = fisher.clone()
    damped.diagonal(dim1=-2, dim2=-1).add_(damping)
    try:
        return torch.linalg.cholesky(damped)
    except torch.linalg.LinAlgError:
        raise ValueError(
            f"damping={damping} is lost in the rounding of gradients as large as these: raise it"
        ) from None


def _damped_inverse(fisher: Tensor, damping: float) -> Tensor:
    return torch.cholesky_inverse(_damped_root(fisher, damping))


def _eliminate(inverse: Tensor, weight: Tensor, active: Tensor) -> Tensor:
    """The accumulated cost at which each weight of each block goes; 0 for the inactive."""
    costs = torch.zeros_like(weight)
    spent = weight.new_zeros(len(weight), 1)
    place = torch.arange(weight.shape[1], device=weight.device).expand_as(weight)  # in the block, of what is still here
    most = int(active.sum(1).max())
    for left in range(most, 0, -1):
        if 2 * left <= weight.shape[1] or (left == most < weight.shape[1]):  # leave the removed ones behind
            kept = active.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :left]
            inverse = inverse.gather(1, kept.unsqueeze(2).expand(-1, -1, inverse.shape[2]))
            inverse = inverse.gather(2, kept.unsqueeze(1).expand(-1, left, -1))
            weight, active, place = (t.gather(1, kept) for t in (weight, active, place))
        diagonal = inverse.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(inverse.dtype).tiny)
        price = (weight.square() / (2 * diagonal)).masked_fill_(~active, torch.inf)
        least, index = price.min(1, keepdim=True)
        some = least.isfinite()  # a block that is empty already waits for the others
        spent = spent + torch.where(some, least, 0.0)
        costs.scatter_(1, place.gather(1, index), torch.where(some, spent, costs.gather(1, place.gather(1, index))))
        column = inverse.gather(2, index.unsqueeze(1).expand(-1, inverse.shape[1], 1)).squeeze(2)  # H_q
        pivot = diagonal.gather(1, index)
        weight = weight - torch.where(some, weight.gather(1, index) / pivot, 0.0) * column
        scaled = torch.where(some, column / pivot.sqrt(), 0.0).unsqueeze(2)
        active = active.scatter(1, index, active.gather(1, index) & ~some)
        inverse.baddbmm_(scaled, scaled.mT, alpha=-1)
    return costs
