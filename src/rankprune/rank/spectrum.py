"""Singular values of a weight tensor and the ranks computed from them, in float64, for analysis.

The fast path that training needs is in `gradient`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def matrix(W: Tensor, transposed: bool = False) -> Tensor:
    """The weight as a matrix with one row per output, (out, in*kh*kw); a view if possible.

    A transposed weight, (in, out/groups, kh, kw) of a ConvTranspose, becomes (out/groups, in*kh*kw).

    Args:
        W: A tensor of two or more dimensions.
        transposed: Whether its second dimension is that of the outputs.

    Raises:
        ValueError: It has fewer than two dimensions.
    """
    if W.dim() < 2:
        raise ValueError(f"A weight of shape {tuple(W.shape)} is no matrix; pass a tensor of at least two dimensions.")
    return (W.transpose(0, 1) if transposed else W).flatten(1)


def _is_degenerate(W: Tensor) -> bool:
    """Whether W̄ = W/||W||_F does not exist: W is zero, empty, or holds NaN or infinity."""
    return not (bool(torch.isfinite(W).all()) and bool((W != 0).any()))


def svdvals(W: Tensor) -> Tensor:
    """Singular values of `matrix(W)`, descending, in float64.

    Args:
        W: A weight.

    Raises:
        ValueError: It holds NaN or infinity.
    """
    M = matrix(W.detach()).to(torch.float64)
    if not torch.isfinite(M).all():
        raise ValueError(
            f"A weight of shape {tuple(W.shape)} holds NaN or infinity and has no singular values; repair it first."
        )
    return torch.linalg.svdvals(M)


def rank_of(s: Tensor, rtol: float) -> int:
    """Number of singular values (descending) above `rtol` times the largest.

    Args:
        s: Singular values, descending.
        rtol: The relative tolerance.
    """
    return int((s > rtol * s[0]).sum()) if s.numel() else 0


def exact_rank(W: Tensor, rtol: float | None = None) -> int:
    """Rank of the stored numbers: singular values above `rtol` * sigma_1.

    The default, max(m, n) * eps of float64, takes the entries as exact; a matrix that is itself the rounded
    result of float32 arithmetic wants max(m, n) * eps of float32.

    Args:
        W: A weight.
        rtol: The relative tolerance.

    Raises:
        ValueError: W holds NaN or infinity.
    """
    s = svdvals(W)
    return rank_of(s, rounding(matrix(W).shape, torch.float64) if rtol is None else rtol)


def rounding(shape: Sequence[int], dtype: torch.dtype) -> float:
    """The usual relative tolerance of a rank: max(m, n) * eps.

    Args:
        shape: The shape of the matrix.
        dtype: Its type.
    """
    return max(shape) * torch.finfo(dtype).eps


def _tail_energies(s: Tensor) -> Tensor:
    """A_j for j = 0..r: the share of the squared spectrum held by the j smallest singular values."""
    energy = (s / s[0]).square().flip(0)  # smallest first, so that small tails are summed without cancellation
    tails = energy.cumsum(0)
    return torch.cat([tails.new_zeros(1), tails / tails[-1]])


def delta_rank_of(s: Tensor, delta: float) -> int:
    """The delta-rank, from the singular values.

    Args:
        s: Singular values, descending.
        delta: δ.

    Raises:
        ValueError: delta is not above 0.
    """
    if not delta > 0:  # nan as well
        raise ValueError(f"delta={delta} admits no delta-rank; choose a delta above 0, such as 0.1.")
    if not s.numel() or s[0] == 0:
        return 0
    error = _tail_energies(s).sqrt()[:-1].flip(0)  # ||W̄ - W̄_k||_F for k = 1..r
    return int((error >= delta).sum()) + 1


def delta_rank(W: Tensor, delta: float) -> int:
    """Definition 1 of the RPG paper: the smallest k >= 1 with ||W̄ - W̄_k||_F < delta; 0 for a zero matrix.

    Args:
        W: A weight.
        delta: δ, above 0.

    Raises:
        ValueError: delta is not above 0, or W holds NaN or infinity.
    """
    return delta_rank_of(svdvals(W), delta)


def effective_rank_of(s: Tensor) -> float:
    """The effective rank, from the singular values.

    Args:
        s: Singular values, descending.
    """
    if not s.numel() or s[0] == 0:
        return 0.0
    p = s / s.sum()
    return float(torch.special.entr(p).sum().exp())


def effective_rank(W: Tensor) -> float:
    """exp of the entropy of the normalised singular values (Roy & Vetterli 2007); 0 for a zero matrix.

    Args:
        W: A weight.

    Raises:
        ValueError: W holds NaN or infinity.
    """
    return effective_rank_of(svdvals(W))


def choose_k(W: Tensor, delta: float) -> int:
    """The k in {0..r-1} whose squared error ||W̄ - W̄_k||_F^2 is nearest `delta`, the larger k on a tie; 0 for a
    zero or non-finite matrix.

    Args:
        W: A weight.
        delta: δ̃.
    """
    if _is_degenerate(W):
        return 0
    tails = _tail_energies(svdvals(W))[1:]
    return tails.numel() - 1 - int((tails - delta).abs().argmin())


def tail_energy(W: Tensor, k: int) -> float:
    """rho = ||W̄ - W̄_k||_F^2, the energy beyond the k largest singular values; 0 for a zero matrix.

    Args:
        W: A weight.
        k: The rank.

    Raises:
        ValueError: k is below 0, or W holds NaN or infinity.
    """
    s = svdvals(W)
    if k < 0:
        raise ValueError(f"k={k} is no rank; choose k between 0 and {s.numel()}.")
    if not s.numel() or s[0] == 0:
        return 0.0
    return float(_tail_energies(s)[max(s.numel() - k, 0)])


def rank_loss(W: Tensor, delta: float) -> float:
    """L = -rho at k = `choose_k(W, delta)`, a plain number in [-1, 0]: nothing differentiates through it, its gradient
    is `rank_grad`. 0 for a zero or non-finite matrix, which contributes nothing.

    Args:
        W: A weight.
        delta: δ̃.
    """
    return 0.0 if _is_degenerate(W) else -tail_energy(W, choose_k(W, delta))


def low_rank(W: Tensor, k: int) -> Tensor:
    """The nearest matrix of rank at most k (Eckart-Young), in W's shape and dtype; computed in float64.

    Args:
        W: A weight.
        k: The rank.

    Raises:
        ValueError: k is not a rank of W.
    """
    M = matrix(W.detach())
    if not 0 <= k <= min(M.shape):
        raise ValueError(f"k={k} is no rank of a {M.shape[0]}x{M.shape[1]} matrix; choose 0 to {min(M.shape)}.")
    U, s, Vh = torch.linalg.svd(M.to(torch.float64), full_matrices=False)
    return ((U[:, :k] * s[:k]) @ Vh[:k]).reshape(W.shape).to(W.dtype)
