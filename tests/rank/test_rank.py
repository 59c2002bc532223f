from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankprune import rank
from rankprune.rank.gradient import _grad_stack

DELTA = 0.1


def with_spectrum(energies: list[float], rows: int, cols: int, scale: float = 3.0, seed: int = 0) -> Tensor:
    """A float64 matrix of norm `scale` whose normalised squared singular values are `energies`."""
    gen = torch.Generator().manual_seed(seed)
    r = len(energies)
    U = torch.linalg.qr(torch.randn(rows, r, generator=gen, dtype=torch.float64)).Q
    V = torch.linalg.qr(torch.randn(cols, r, generator=gen, dtype=torch.float64)).Q
    return scale * (U * torch.tensor(energies, dtype=torch.float64).sqrt()) @ V.T


def sparse(rows: int, *cols: int, density: float = 0.3, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    gen = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, *cols, generator=gen, dtype=torch.float64)
    return (values * (torch.rand(rows, *cols, generator=gen) < density)).to(dtype)


def by_autograd(W: Tensor, delta: float) -> tuple[Tensor, int]:
    """The loss as published, in float64: SVD of the detached matrix, autograd through the rest."""
    leaf = W.detach().double().clone().requires_grad_()
    bar = leaf.flatten(1) / leaf.norm()
    U, s, Vh = torch.linalg.svd(bar.detach(), full_matrices=False)
    j = int((s.square().flip(0).cumsum(0) - delta).abs().argmin()) + 1
    k = len(s) - j
    loss = -(bar - (U[:, :k] * s[:k]) @ Vh[:k]).square().sum()
    return torch.autograd.grad(loss, leaf)[0], k


# --- choice of k, ranks, truncation -------------------------------------------------------------------------------


@pytest.mark.parametrize(("delta", "k"), [(0.05, 3), (0.2, 2), (0.5, 1), (1.0, 0)])
def test_choose_k_on_a_hand_made_spectrum(delta: float, k: int) -> None:
    W = with_spectrum([0.5, 0.3, 0.15, 0.05], 6, 4)
    assert rank.choose_k(W, delta) == k
    assert rank.rank_loss(W, delta) == pytest.approx(-[1.0, 0.5, 0.2, 0.05][k])


def test_delta_rank_is_the_smallest_k_with_error_below_delta() -> None:
    W = with_spectrum([0.64, 0.27, 0.08, 0.01], 5, 7)  # errors of k = 1, 2, 3: 0.6, 0.3, 0.1
    assert [rank.delta_rank(W, d) for d in (1.0, 0.61, 0.59, 0.31, 0.29, 0.11, 0.09)] == [1, 1, 2, 2, 3, 3, 4]
    with pytest.raises(ValueError, match="delta=0"):
        rank.delta_rank(W, 0)


def test_delta_rank_is_strict() -> None:
    assert rank.delta_rank(torch.eye(4), 0.5) == 4  # k = 3 leaves exactly 0.5, which is not below 0.5
    assert rank.delta_rank(torch.eye(4), 0.5 + 1e-9) == 3


def test_effective_rank_closed_forms() -> None:
    assert rank.effective_rank(torch.eye(7)) == pytest.approx(7)
    assert rank.effective_rank(torch.ones(3, 5)) == pytest.approx(1)
    p = np.array([0.75, 0.25])
    assert rank.effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(math.exp(-(p * np.log(p)).sum()))


def test_exact_rank_sees_what_a_squared_gram_in_float32_would_not() -> None:
    assert rank.exact_rank(torch.diag(torch.tensor([1.0, 1e-6, 1e-9, 0.0]))) == 3
    product = sparse(9, 4, density=1) @ sparse(4, 12, density=1)
    assert rank.exact_rank(product) == 4
    assert rank.exact_rank(product.float(), rtol=12 * torch.finfo(torch.float32).eps) == 4
    assert rank.exact_rank(torch.zeros(3, 4)) == rank.delta_rank(torch.zeros(3, 4), 0.1) == 0


@pytest.mark.parametrize(("rows", "cols"), [(6, 11), (11, 6), (5, 5)])
def test_low_rank_is_eckart_young(rows: int, cols: int) -> None:
    W = sparse(rows, cols, density=0.8)
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    gen = torch.Generator().manual_seed(1)
    for k in range(min(rows, cols) + 1):
        best = rank.low_rank(W, k)
        torch.testing.assert_close(best, (U[:, :k] * s[:k]) @ Vh[:k])
        error = (W - best).norm()
        assert float(error**2) == pytest.approx(rank.tail_energy(W, k) * float(W.norm() ** 2), abs=1e-12)
        for _ in range(20):  # the best fit in a random column space is still no better
            basis = torch.linalg.qr(torch.randn(rows, k, generator=gen, dtype=W.dtype)).Q
            assert error <= (W - basis @ (basis.T @ W)).norm() + 1e-12


def test_matrix_folds_convolutions_and_transposed_convolutions() -> None:
    W = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    assert torch.equal(rank.matrix(W), W.reshape(2, 60))
    assert torch.equal(rank.matrix(W, transposed=True), W.permute(1, 0, 2, 3).reshape(3, 40))
    with pytest.raises(ValueError, match="no matrix"):
        rank.matrix(torch.ones(3))


# --- the gradient -------------------------------------------------------------------------------------------------

SHAPES = [(6, 20), (20, 6), (9, 9), (1, 7), (7, 1), (1, 1), (8, 3, 3, 3), (4, 5, 7)]


@pytest.mark.parametrize("delta", [0.02, 0.1, 0.2, 0.6])
@pytest.mark.parametrize("shape", SHAPES)
def test_float64_gradient_equals_autograd(shape: tuple[int, ...], delta: float) -> None:
    W = sparse(*shape, density=0.9)
    got = rank.rank_grad(W, delta)
    want, _ = by_autograd(W, delta)
    assert got.shape == W.shape
    assert got.dtype == torch.float64
    assert float((got - want).abs().max()) < 1e-12


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.integers(1, 40), st.floats(0.05, 1), st.floats(0.01, 0.9), st.integers(0, 10**6))
def test_gradient_equals_autograd_on_any_sparse_matrix(
    rows: int, cols: int, density: float, delta: float, seed: int
) -> None:
    W = sparse(rows, cols, density=density, seed=seed)
    if not W.any():
        return
    want, _ = by_autograd(W, delta)
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        V = W.to(dtype)
        want, k = by_autograd(V, delta)
        got = rank.rank_grad(V, delta)
        tails = torch.linalg.svdvals(V.double()).square().flip(0).cumsum(0) / V.double().norm() ** 2
        miss = (tails - delta).abs().sort().values
        if len(miss) > 1 and miss[1] - miss[0] < 1e-12:
            continue  # a genuine tie: either k is right
        if k and rank.tail_energy(V, k) > 1e-12:
            assert float((got - want).norm()) <= tolerance * max(float(want.norm()), 1e-6)
        else:
            assert float(got.norm()) <= 1e-6


@pytest.mark.parametrize("shape", [(64, 576), (256, 64), (128, 128), (96, 300)])
def test_float32_gradient_is_good_to_1e_4_and_agrees_on_k(shape: tuple[int, int]) -> None:
    for seed in range(5):
        W = sparse(*shape, density=0.1, seed=seed, dtype=torch.float32)
        want, k = by_autograd(W, DELTA)
        got = rank.rank_grad(W, DELTA)
        assert got.dtype == torch.float32
        assert float((got - want).norm() / want.norm()) < 1e-4
        assert rank.choose_k(W, DELTA) == k
        rho = rank.tail_energy(W, k)  # the norm gives away the k that rank_grad took
        assert float(got.norm() * W.norm() / 2) == pytest.approx(math.sqrt(rho * (1 - rho)), rel=1e-4)


def test_float32_with_a_nearly_closed_gap_at_the_cut_is_worked_in_float64() -> None:
    head, tail = [0.03] * 27, [0.02] * 5 + [0.018] * 5
    energies = [e / sum([*head, *tail]) for e in [*head, *tail]]
    energies[27] = energies[28] * (1 + 1e-6)
    W = with_spectrum([e / sum(energies) for e in energies], 40, 90).float()
    delta = sum(sorted(energies)[:9]) / sum(energies)  # the cut falls into the gap of 1e-6
    want, k = by_autograd(W, delta)
    assert k == 28
    assert float((rank.rank_grad(W, delta) - want).norm() / want.norm()) < 1e-6


def test_float32_with_a_tiny_tail() -> None:
    W = with_spectrum([0.9999995, 3e-7, 2e-7], 30, 50).float()
    want, k = by_autograd(W, DELTA)
    assert k == 1
    assert float((rank.rank_grad(W, DELTA) - want).norm() / want.norm()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_are_worked_in_float32(dtype: torch.dtype) -> None:
    W = sparse(16, 4, 3, 3, density=0.5).to(dtype)
    got = rank.rank_grad(W, DELTA)
    assert got.dtype == dtype
    assert got.shape == W.shape
    assert torch.equal(got, rank.rank_grad(W.float(), DELTA).to(dtype))


def test_orthogonal_to_the_weight_of_known_norm_and_scale_invariant() -> None:
    W = sparse(12, 30)
    g, n = rank.rank_grad(W, DELTA), W.norm()
    rho = rank.tail_energy(W, rank.choose_k(W, DELTA))
    assert 0 < rho < 1
    assert abs(float((g * W).sum())) < 1e-13
    assert float(g.norm()) == pytest.approx(2 / float(n) * math.sqrt(rho * (1 - rho)), rel=1e-12)
    assert rank.rank_loss(7 * W, DELTA) == pytest.approx(rank.rank_loss(W, DELTA), rel=1e-13)
    torch.testing.assert_close(rank.rank_grad(7 * W, DELTA), g / 7)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e25])
def test_float32_weights_whose_square_leaves_the_range(scale: float) -> None:
    W = sparse(10, 25, dtype=torch.float32)
    got = rank.rank_grad(W * scale, DELTA).double() * scale
    torch.testing.assert_close(got, rank.rank_grad(W, DELTA).double(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("rows", "cols"), [(10, 24), (24, 10), (12, 12)])
def test_a_step_maps_the_singular_values_and_keeps_their_vectors(rows: int, cols: int) -> None:
    W = sparse(rows, cols, density=0.5)
    U, s, Vh = torch.linalg.svd(W, full_matrices=False)
    n, k = W.norm(), rank.choose_k(W, DELTA)
    rho = rank.tail_energy(W, k)
    assert 0 < rho < 1
    step = 1e-2 * float(n**2)
    after = W - step * rank.rank_grad(W, DELTA)
    tail = torch.arange(len(s)) >= k
    want = s * (1 - 2 * step * rho / n**2) + tail * (2 * step / n**2) * s
    torch.testing.assert_close(U.T @ after @ Vh.T, torch.diag(want), rtol=0, atol=1e-12)
    assert rank.tail_energy(after, k) > rho
    for delta in (0.05, 0.1, 0.3, 0.5):
        assert rank.delta_rank(after, delta) >= rank.delta_rank(W, delta)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 16), st.integers(2, 16), st.integers(0, 10**6))
def test_a_small_step_raises_the_tail_energy(rows: int, cols: int, seed: int) -> None:
    W = sparse(rows, cols, density=0.8, seed=seed)
    k = rank.choose_k(W, DELTA)
    rho = rank.tail_energy(W, k)
    after = W - 1e-3 * W.norm() ** 2 * rank.rank_grad(W, DELTA)
    if k and 1e-9 < rho < 1:
        assert rank.tail_energy(after, k) > rho
    else:
        torch.testing.assert_close(after, W)


@pytest.mark.parametrize(("m", "delta", "j"), [(4, 0.3, 1), (10, 0.1, 1), (10, 0.32, 3), (5, 1.0, 5)])
def test_identity(m: int, delta: float, j: int) -> None:
    W = torch.eye(m, dtype=torch.float64)
    assert rank.choose_k(W, delta) == m - j
    assert rank.rank_loss(W, delta) == pytest.approx(-j / m)
    g, rho = rank.rank_grad(W, delta), j / m
    # any j unit vectors are a tail of the identity, so only what does not depend on them is determined
    assert float(g.norm()) == pytest.approx(2 / math.sqrt(m) * math.sqrt(rho * (1 - rho)), abs=1e-12)
    assert abs(float(g.trace())) < 1e-12


def test_degenerate_matrices_give_exact_zeros() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for bad in (0.0, math.nan, math.inf):
            W = torch.ones(5, 3, 2, 2, dtype=dtype) * (bad if bad == 0 else 1)
            W[2, 1, 0, 1] = bad
            g = rank.rank_grad(W, DELTA)
            assert torch.equal(g, torch.zeros_like(W))
            assert g.dtype == dtype
            assert rank.rank_loss(W, DELTA) == rank.choose_k(W, DELTA) == 0
    W = sparse(5, 8)
    assert rank.choose_k(W, 1.0) == 0
    assert torch.equal(rank.rank_grad(W, 1.0), torch.zeros_like(W))
    with pytest.raises(ValueError, match="NaN"):
        rank.svdvals(torch.full((2, 2), math.nan))


def test_rank_one_has_no_gradient() -> None:
    W = torch.outer(torch.arange(1.0, 9), torch.arange(1.0, 5))
    assert float(rank.rank_grad(W, DELTA).abs().max()) < 1e-7
    assert rank.rank_loss(W, DELTA) == pytest.approx(0, abs=1e-12)


def test_at_pruned_positions_the_gradient_is_the_truncation_and_dead_lines_get_none() -> None:
    for rows, cols in ((12, 30), (30, 12)):
        W = sparse(rows, cols, density=0.4)
        W[3], W[:, 5], W[:, 0] = 0, 0, 0
        for V in (W, W.float()):
            g = rank.rank_grad(V, DELTA)
            head = rank.low_rank(V / V.norm(), rank.choose_k(V, DELTA))
            pruned = V == 0
            torch.testing.assert_close(g[pruned], (2 / V.norm() * head)[pruned])
            assert not g[3].any()
            assert not g[:, [0, 5]].any()
            assert g[pruned].any()


def test_a_null_tail_may_be_the_nearest() -> None:
    W = torch.zeros(3, 4, dtype=torch.float64)
    W[0, 0] = W[1, 1] = 1  # tails 0, .5, 1: the dead row is the tail nearest 0.1
    assert rank.choose_k(W, DELTA) == 2
    assert torch.equal(rank.rank_grad(W, DELTA), torch.zeros_like(W))


# --- many layers --------------------------------------------------------------------------------------------------


def test_rank_grads_is_rank_grad_of_each_whatever_the_threads() -> None:
    shapes = [(8, 3, 3, 3), (16, 8), (8, 3, 3, 3), (40, 64), (64, 40), (1, 1)]
    weights = [sparse(*s, seed=i, density=0.5, dtype=torch.float32) for i, s in enumerate(shapes)]
    weights += [sparse(5, 9), torch.zeros(4, 4), torch.full((3, 3), math.nan)]
    one_by_one = [rank.rank_grad(w, DELTA) for w in weights]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            got = rank.rank_grads(weights, DELTA)
            assert torch.get_num_threads() == threads
            assert all(torch.equal(a, b) for a, b in zip(got, one_by_one))
    finally:
        torch.set_num_threads(before)
    assert rank.rank_grads([], DELTA) == []


def test_layers_of_one_shape_as_a_batch() -> None:
    weights = [sparse(12, 20, seed=i, density=0.1 * (i + 1)) for i in range(6)]
    weights[2][4] = 0
    weights += [torch.zeros(12, 20, dtype=torch.float64), torch.full((12, 20), math.nan, dtype=torch.float64)]
    for turn in (lambda w: w, lambda w: w.T):
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            batch = [turn(w).to(dtype) for w in weights]
            for got, w in zip(_grad_stack(batch, DELTA), batch):
                torch.testing.assert_close(got, rank.rank_grad(w, DELTA), rtol=0, atol=tolerance)


def test_gradient_mode_autocast_and_matmul_precision_do_not_reach_it() -> None:
    W = nn.Parameter(sparse(24, 60, dtype=torch.float32))
    plain = rank.rank_grad(W, DELTA)
    assert not plain.requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rank.rank_grad(W, DELTA), plain)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(rank.rank_grad(W, DELTA), plain)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


# --- structural rank ----------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.floats(0, 0.3), st.integers(0, 10**6))
def test_structural_rank_is_a_maximum_matching(rows: int, cols: int, density: float, seed: int) -> None:
    csgraph = pytest.importorskip("scipy.sparse.csgraph")
    from scipy.sparse import csr_matrix

    mask = np.random.default_rng(seed).random((rows, cols)) < density
    want = int((csgraph.maximum_bipartite_matching(csr_matrix(mask)) >= 0).sum())
    assert rank.structural_rank(torch.from_numpy(mask)) == want


def test_structural_rank_follows_long_augmenting_paths() -> None:
    n = 3000  # a staircase: the last row can only be matched by moving every other one
    mask = torch.zeros(n, n, dtype=torch.bool)
    i = torch.arange(n - 1)
    mask[i, i] = mask[i, i + 1] = True
    mask[n - 1, 0] = True
    assert rank.structural_rank(mask) == n


def test_structural_rank_bounds_the_rank_and_is_reached_by_random_values() -> None:
    mask = sparse(20, 6, 3, 3, density=0.03) != 0
    assert rank.exact_rank(torch.randn(mask.shape, dtype=torch.float64) * mask) == rank.structural_rank(mask)
    assert rank.structural_rank(torch.ones(5, 9)) == 5
    assert rank.structural_rank(torch.zeros(5, 9)) == 0


# --- models -------------------------------------------------------------------------------------------------------


def test_feature_rank_is_bounded_by_weight_and_input() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 10), nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4)).train()
    with torch.no_grad():
        net[0].weight.copy_(rank.low_rank(net[0].weight, 3))
        net[0].bias.zero_()
    X = torch.randn(30, 12)
    got = rank.feature_rank(net, X)
    assert got == {"0": 3, "1": 3, "3": 4}  # 3 through the second layer's 10x16, then ReLU breaks it
    assert rank.feature_rank(net, X[:2]) == {"0": 2, "1": 2, "3": 2}
    assert net.training


def test_feature_rank_of_convolutions() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 1))
    with torch.no_grad():
        net[0].weight[5:] = 0
    assert rank.feature_rank(net, torch.randn(2, 3, 8, 8)) == {"0": 5, "2": 5}  # a fresh BatchNorm adds no constant


def test_profile_of_a_small_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 5, 2), nn.Flatten(), nn.Linear(6, 4))
    with torch.no_grad():
        net[0].weight[6:] = 0
        net[3].weight.copy_(torch.ones(4, 6))
    table = rank.profile(net, delta=0.2)
    conv, up, fc = table.rows
    assert (conv.name, conv.shape, conv.nonzeros, conv.dead_rows) == ("0.weight", (8, 27), 6 * 27, 2)
    assert (conv.exact_rank, conv.structural_rank, conv.full_rank, conv.density) == (6, 6, 8, 0.75)
    assert (up.shape, up.exact_rank) == ((5, 32), 5)
    assert (fc.exact_rank, fc.delta_rank, fc.structural_rank, round(fc.effective_rank, 6)) == (1, 1, 4, 1.0)
    assert conv.delta_rank == rank.delta_rank(net[0].weight, 0.2)
    assert table.mean_ratio() == pytest.approx((conv.delta_rank / 8 + up.delta_rank / 5 + 1 / 4) / 3)
    assert "0.2-rank" in str(table)
    assert "exact" in str(table)


def test_profile_counts_shared_weights_once_and_attention_projections() -> None:
    net = nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2), "a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    net["b"].weight = net["a"].weight
    assert [r.name for r in rank.profile(net).rows] == ["attn.in_proj_weight", "attn.out_proj.weight", "a.weight"]
    words = nn.ModuleDict({"words": nn.Embedding(5, 4), "head": nn.Linear(4, 5)})
    words["head"].weight = words["words"].weight
    assert [r.name for r in rank.profile(words).rows] == ["words.weight"]  # as masks and MACs name it
