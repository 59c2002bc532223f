"""Gradient of the rank loss L = -rho in closed form (RPG, NeurIPS 2023, proof of Theorem 2).

With W̄ = W/n, n = ||W||_F, the SVD W̄ = sum s_i u_i v_i^T and R its part beyond rank k, the truncation held constant:
dL/dW = -(2/n)(R - rho W̄). R is W̄ projected on eigenvectors of the small Gram matrix, so neither is the wide matrix
decomposed nor a decomposition differentiated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .spectrum import matrix
from .workers import run_in_parallel

# A float32 layer whose estimated relative error is above this is computed again in float64.
_TOLERANCE = 1e-4
# Rounding error of R for any spectral gap, in units of eps: about 10, measured on the layers of ResNet-50.
_FLOOR = 10.0
# eigh reads the lower triangle alone: with 4 block rows, 10 of the 16 blocks are computed.
_GRAM_BLOCKS = 4


def rank_grad(W: Tensor, delta: float) -> Tensor:
    """The gradient dL/dW of the rank loss.

    Half precisions are computed in float32, and float32 in float64 if a tie or a small spectral gap requires it.

    Args:
        W: A weight of two or more dimensions; the first is that of the outputs.
        delta: δ̃, the target for the share of energy beyond rank k.

    Returns:
        A tensor of W's shape and dtype: exactly zero where W is zero or not finite, where k = 0, and on dead rows and
        columns.
    """
    return rank_grads([W], delta)[0]


def rank_grads(weights: Sequence[Tensor], delta: float) -> list[Tensor]:
    """`rank_grad` of each weight.

    On a CPU the layers are shared by `torch.get_num_threads()` workers of one thread each, the largest first, so that
    results do not depend on the number of threads; on other devices layers of the same shape form one batch.

    Args:
        weights: Weights of two or more dimensions.
        delta: δ̃, the target for the share of energy beyond rank k.

    Returns:
        A gradient for each, of its shape and dtype.
    """
    out: list[Tensor] = list(weights)
    batches: dict[tuple, list[int]] = {}
    for i, W in enumerate(weights):
        kind = (i,) if W.device.type == "cpu" else (W.device, W.dtype, tuple(matrix(W).shape))
        batches.setdefault(kind, []).append(i)

    def work(members: list[int]) -> None:
        # Gradient mode and autocast belong to the thread; autocast would round the Gram matrix to half precision.
        with torch.no_grad(), torch.autocast(weights[members[0]].device.type, enabled=False):
            for i, grad in zip(members, _grad_stack([weights[i] for i in members], delta)):
                out[i] = grad

    with _full_float32():
        run_in_parallel(work, batches.values(), cost=lambda members: cost(tuple(matrix(weights[members[0]]).shape)))
    return out


def cost(shape: Sequence[int]) -> int:
    """Approximate number of multiplications of a rank gradient, to compare layers.

    Args:
        shape: Rows and columns.
    """
    m, n = sorted(shape)
    return m * m * (4 * m + 2 * n)


@contextmanager
def _full_float32() -> Iterator[None]:
    """TF32 and bf16 matmuls, which a user may have allowed for the network, are too coarse for a Gram matrix."""
    backends: Any = torch.backends
    homes = [backends.cuda.matmul, backends.mkldnn.matmul] if _has_fp32_precision() else []
    before = [home.fp32_precision for home in homes]
    legacy = None if homes else torch.get_float32_matmul_precision()
    for home in homes:
        home.fp32_precision = "ieee"
    if legacy is not None:
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        for home, value in zip(homes, before):
            home.fp32_precision = value
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy)


def _has_fp32_precision() -> bool:
    """The per-backend setting of torch >= 2.9; the older global one must not be mixed with it."""
    return hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision")


def _grad_stack(weights: Sequence[Tensor], delta: float) -> list[Tensor]:
    """Gradients of equally shaped weights, as one batch."""
    work_dtype = torch.promote_types(weights[0].dtype, torch.float32)
    folded = [matrix(w.detach()).to(work_dtype) for w in weights]
    M = torch.stack(folded) if len(folded) > 1 else folded[0][None]
    try:
        grads, shaky = _closed_form(M, delta)
    except torch.linalg.LinAlgError:
        grads, shaky = torch.zeros_like(M), torch.ones(len(weights), dtype=torch.bool)
    if work_dtype != torch.float64:
        for i in shaky.nonzero().flatten().tolist():
            grads[i] = _in_float64(M[i], delta)
    return [g.to(w.dtype).reshape(w.shape) for g, w in zip(grads, weights)]


def _in_float64(M: Tensor, delta: float) -> Tensor:
    try:
        return _closed_form(M[None].double(), delta)[0][0].to(M.dtype)
    except torch.linalg.LinAlgError:  # a layer that cannot be decomposed has no rank term
        return torch.zeros_like(M)


def _closed_form(M: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """dL/dM of a batch (b, p, q), and which of them need more precision than M's dtype.

    The large M is read four times and never copied: all factors are applied to the small matrices.
    """
    wide = M.shape[1] <= M.shape[2]
    short = M if wide else M.mT  # (b, m, n) with m <= n
    G = _gram(short)  # (b, m, m)
    energy = G.diagonal(dim1=1, dim2=2)  # (b, m), of each row; their sum is n^2, and a dead row has none
    square = energy.sum(1)
    sound = square.isfinite() & (square > 0)
    if not sound.all():
        M, short = (x.where(sound[:, None, None], 0) for x in (M, short))
        G = G.where(sound[:, None, None], 0)
        energy, square = G.diagonal(dim1=1, dim2=2), square.where(sound, 1)
    alive = energy > 0
    live = alive.any(0).nonzero().flatten()
    m, deleted = live.numel(), live.numel() < short.shape[1]
    if not m:
        return torch.zeros_like(M), ~sound
    if deleted:
        G = G[:, live][:, :, live]
    lam, Q = torch.linalg.eigh(G / square[:, None, None])  # (b, m) ascending, (b, m, m)
    j, rho, shaky = _cut(lam, delta, deleted)

    # Project on the shorter of tail (the first j eigenvectors) and head (the rest), cut to the widest of the batch.
    tail_width, head_width = int(j.max()), m - int(j.min())
    use_tail = tail_width <= head_width
    first, last = (0, tail_width) if use_tail else (m - head_width, m)
    column = torch.arange(first, last, device=M.device)
    chosen = (column < j[:, None]) if use_tail else (column >= j[:, None])
    basis = Q[:, :, first:last] * chosen[:, None, :]  # (b, m, width)
    if deleted:
        basis = basis.new_zeros(*short.shape[:2], last - first).index_copy_(1, live, basis)
    # -(2/n^2)(R - rho M) with R = B B^T M on the tail, M - B B^T M on the head; zero where j = 0 or k = 0.
    scale = torch.where((j > 0) & (j < m) & sound, 2 / square, 0)
    grad = M * ((rho if use_tail else rho - 1) * scale).to(M.dtype)[:, None, None]
    # Dead rows are wiped on the left: eigh may mix them into a null vector.
    left = basis * alive[:, :, None] * (-scale if use_tail else scale)[:, None, None]
    if wide:
        grad.baddbmm_(left, basis.mT @ short)
    else:
        grad.baddbmm_(M @ basis, left.mT)
    return grad, shaky | ~sound


def _gram(A: Tensor) -> Tensor:
    """Lower triangle of A A^T; the rest is not computed, as `eigh` does not read it."""
    b, m, _ = A.shape
    if b > 1:
        return A @ A.mT
    G = A.new_zeros(1, m, m)
    step = -(-m // _GRAM_BLOCKS)
    for i in range(0, m, step):
        end = min(i + step, m)
        torch.mm(A[0, i:end], A[0, :end].T, out=G[0, i:end, :end])
    return G


def _cut(lam: Tensor, delta: float, deleted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Tail length j with energy rho nearest delta, per spectrum (ascending), and whether rounding may have decided.

    j = 0 can be chosen only where dead rows were deleted: they are then the tail, without energy.
    """
    eps, lam = torch.finfo(lam.dtype).eps, lam.double().clamp_min(0)
    tails = lam.cumsum(1)
    tails = tails / tails[:, -1:].clamp_min(torch.finfo(torch.float64).tiny)
    tails = torch.cat([tails.new_zeros(len(lam), 1), tails], 1)
    miss = (tails - delta).abs()
    if not deleted:
        miss[:, 0] = torch.inf
    j = miss.argmin(1)
    rho = tails.gather(1, j[:, None])[:, 0]

    noise = eps * lam[:, -1]  # of an eigenvalue of the rounded Gram matrix
    runner_up = miss.scatter(1, j[:, None], torch.inf).amin(1)
    tie = runner_up - miss.gather(1, j[:, None])[:, 0] < 4 * noise * j.sqrt()
    m = lam.shape[1]
    below = lam.gather(1, (j - 1).clamp(0, m - 1)[:, None])[:, 0]
    above = lam.gather(1, j.clamp(0, m - 1)[:, None])[:, 0]
    # Davis-Kahan: eigenvectors either side of the cut turn into each other by noise/gap, which moves R by that
    # angle times s_k; the gradient's own size is sqrt(rho (1 - rho)).
    turn = (noise / (above - below).clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1) * above.sqrt()
    loose = turn + _FLOOR * eps > _TOLERANCE * (rho * (1 - rho)).clamp_min(0).sqrt()
    inside = (j > 0) & (j < m)
    return j, rho, tie | (inside & loose)
