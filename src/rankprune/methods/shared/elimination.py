"""Optimal brain surgery one weight at a time, batched over blocks: what a removal costs, and how the others change."""

from __future__ import annotations

import torch
from torch import Tensor

from .fisher import in_blocks

_ENTRIES = 1 << 23  # of a temporary in float64: 64 MB


def removal_costs(fisher: Tensor, weight: Tensor, active: Tensor, damping: float) -> Tensor:
    """The increase of the loss, in the quadratic model, up to and including the greedy removal of each weight; flat.

    In every block the weight with the least w²/(2 H_qq), H the inverse of the block, is removed next; the others change
    by -(w_q/H_qq) H_q, and H becomes the inverse for the remaining ones, H - H_q H_qᵀ/H_qq (Frantar & Alistarh 2022,
    lemma 1). A weight gets the sum of the costs so far, so that a threshold cuts the sequence of each block at one
    place. Inactive weights get 0.

    Args:
        fisher: The undamped Fisher matrix in blocks, (blocks, size, size).
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

    The optimum for the others is w_S + F_SS⁻¹ F_SQ w_Q, with Q cut and S kept. Removals one after the other end there
    too, in any order, since each is the optimum given those before it.

    Args:
        fisher: The undamped Fisher matrix in blocks, (blocks, size, size).
        weight: The weights, flat.
        cut: Which of them are removed, flat.
        damping: λ, added to the diagonal.
    """
    size = fisher.shape[-1]
    pieces = []
    step = max(1, _ENTRIES // size**2)
    for f, w, out in zip(fisher.split(step), in_blocks(weight, size).split(step), in_blocks(cut, size).split(step)):
        removed = torch.where(out, w.double(), 0.0)  # (blocks, size): w_Q
        force = torch.where(out, 0.0, (f @ removed.unsqueeze(-1)).squeeze(-1))  # F_SQ w_Q
        rest = f.masked_fill(out.unsqueeze(-1) | out.unsqueeze(-2), 0.0)  # F_SS; rows of Q keep only the damping
        change = torch.cholesky_solve(force.unsqueeze(-1), _damped_root(rest, damping)).squeeze(-1)
        pieces.append(removed - change)
    return torch.cat(pieces).flatten()[: weight.numel()]


def _damped_root(fisher: Tensor, damping: float) -> Tensor:
    """Cholesky factor of F + λI."""
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
    """The accumulated cost at which each weight of each block is removed, (blocks, size); 0 for inactive ones.

    `inverse` is (blocks, size, size) and overwritten; `weight` and `active` are (blocks, size).
    """
    costs = torch.zeros_like(weight)
    spent = weight.new_zeros(len(weight), 1)
    place = torch.arange(weight.shape[1], device=weight.device).expand_as(weight)  # original index in the block
    most = int(active.sum(1).max())
    for left in range(most, 0, -1):
        if 2 * left <= weight.shape[1] or (left == most < weight.shape[1]):  # drop the removed rows and columns
            kept = active.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :left]
            inverse = inverse.gather(1, kept.unsqueeze(2).expand(-1, -1, inverse.shape[2]))
            inverse = inverse.gather(2, kept.unsqueeze(1).expand(-1, left, -1))
            weight, active, place = (t.gather(1, kept) for t in (weight, active, place))
        diagonal = inverse.diagonal(dim1=1, dim2=2).clamp_min(torch.finfo(inverse.dtype).tiny)
        cost = (weight.square() / (2 * diagonal)).masked_fill_(~active, torch.inf)
        least, index = cost.min(1, keepdim=True)  # (blocks, 1): the weight q of each block that goes next
        removes = least.isfinite()  # False for a block that is empty already
        spent = spent + torch.where(removes, least, 0.0)
        costs.scatter_(1, place.gather(1, index), torch.where(removes, spent, costs.gather(1, place.gather(1, index))))
        column = inverse.gather(2, index.unsqueeze(1).expand(-1, inverse.shape[1], 1)).squeeze(2)  # H_q
        pivot = diagonal.gather(1, index)  # H_qq
        weight = weight - torch.where(removes, weight.gather(1, index) / pivot, 0.0) * column
        scaled = torch.where(removes, column / pivot.sqrt(), 0.0).unsqueeze(2)
        active = active.scatter(1, index, active.gather(1, index) & ~removes)
        inverse.baddbmm_(scaled, scaled.mT, alpha=-1)
    return costs
