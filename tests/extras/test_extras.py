"""Extras: each one's facts, and that each composes with every method it goes with."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rankprune as rp
from _nets import batch, cnn, sgd, train
from rankprune.core.method import DropGrow, Latent
from rankprune.core.settings import settings_of
from rankprune.extras.rank_floor import matching_cover, row_and_column_cover, row_cover
from rankprune.extras.tail_taylor import unit_and_tail

STEPS = 18


def attach(model: nn.Module, optimizer: torch.optim.Optimizer, name: str, sparsity: float = 0.9, **options: object) -> rp.Sparsifier:
    base = name.split("+")[0]
    every = {"every": 3} if "every" in settings_of(rp.method_info(base).cls) else {}
    data = {"data": [batch(100 + i) for i in range(2)], "loss_fn": nn.functional.cross_entropy}
    return rp.attach(model, optimizer, name, sparsity=sparsity, total_steps=STEPS, **every, **data, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("extra", rp.extras.list_extras())
@pytest.mark.parametrize("method", rp.list_methods())
def test_every_extra_with_every_method(method: str, extra: str) -> None:
    model = cnn()
    optimizer = sgd(model)
    latent = issubclass(rp.method_info(method).cls, Latent)
    if extra == "rank_steer" and not latent:
        with pytest.raises(ValueError, match="moves latents"):
            attach(model, optimizer, f"{method}+{extra}")
        return
    if extra == "rank_steer" and method in ("str", "probmask", "safe", "sign_in"):  # nothing would move
        with pytest.raises(ValueError, match=f"cut latents, which {method} lets rest"):
            attach(model, optimizer, f"{method}+{extra}")
        return
    if extra == "grace" and not issubclass(rp.method_info(method).cls, DropGrow):
        with pytest.raises(ValueError, match="grows nothing"):
            attach(model, optimizer, f"{method}+{extra}")
        return
    sp = attach(model, optimizer, f"{method}+{extra}")
    train(model, optimizer, 1, STEPS)
    sp.finalize()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_unknown_extra() -> None:
    with pytest.raises(ValueError, match=r"no extra 'hamm': did you mean 'ham'"):
        attach(cnn(), sgd(cnn()), "gmp+hamm")


def line(values: list[float], grads: list[float], name: str, **options: object) -> Tensor:
    model = nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rp.attach(model, optimizer, name, total_steps=5, **options)  # type: ignore[arg-type]
    model.weight.grad = torch.tensor([grads])
    optimizer.step()
    return model.weight.detach()[0]


def test_ham_by_the_formula() -> None:
    values, grads = [0.5, -0.2, 0.1, 0.0], [0.01, 0.02, -0.03, 0.5]
    found = line(values, grads, "static", extras=[rp.extras.HAM(alpha=20.0, beta=0.1)])
    for w, g, after in zip(values, grads, found.tolist()):
        stepped = w - 0.1 * g if w else 0.0
        sign = (stepped > 0) - (stepped < 0)
        assert after == pytest.approx(stepped * math.exp(-0.1 * (20.0 * sign * g + 0.1)), rel=1e-5)
    # The exponent is held within ±5.
    huge = line([0.5, 0.5], [-1e1, 0.0], "static", extras=[rp.extras.HAM()])
    assert huge[0].item() == pytest.approx((0.5 + 1.0) * math.exp(5.0), rel=1e-4)
    # A norm above 1000 is scaled back to it: 1000.5 e^5 and 0.5 e^(-1e-4) keep their ratio.
    far = line([0.5, 0.5], [-1e4, 0.0], "static", extras=[rp.extras.HAM()])
    assert float(far.norm()) == pytest.approx(1000.0, rel=1e-5)
    assert (far[1] / far[0]).item() == pytest.approx(0.5 * math.exp(-1e-4) / (1000.5 * math.exp(5.0)), rel=1e-4)


def test_ham_moves_every_matrix_and_no_vector() -> None:
    """The layer that is left out of pruning is moved by the formula; biases and norms are the optimizer's alone."""

    def run(name: str) -> dict[str, Tensor]:
        model = cnn()
        optimizer = sgd(model, momentum=0.0, weight_decay=0.0)
        rp.attach(model, optimizer, name, sparsity=0.9, total_steps=9, dense="0.weight")
        train(model, optimizer, 1, 1)
        return {key: p.detach() for key, p in model.named_parameters()}

    model = cnn()
    x, y = batch(1)
    rp.attach(model, sgd(model), "magnitude", sparsity=0.9, total_steps=9, dense="0.weight")
    nn.functional.cross_entropy(model(x), y).backward()
    grad, (plain, ham) = model[0].weight.grad, (run("magnitude"), run("magnitude+ham"))
    stepped = plain["0.weight"]
    expected = stepped * torch.exp(-0.05 * (200.0 * stepped.sign() * grad + 1e-3))
    assert torch.allclose(ham["0.weight"], expected, rtol=1e-5)
    assert not torch.allclose(expected, stepped, rtol=1e-3)
    assert all(torch.equal(ham[key], plain[key]) for key in plain if plain[key].dim() == 1)


@pytest.mark.parametrize("name", ["static+ham", "feather+ham", "topkast", "gmp+sparseopt"])
def test_a_step_that_a_fused_optimizer_skips_changes_no_weight(name: str) -> None:
    """Its gradients are not finite and the flag is on the device: the hooks after the step run, and must do nothing."""
    model = cnn()
    if name.startswith("static"):
        rp.prune(model, "random", sparsity=0.5)
    optimizer = sgd(model, fused=True)
    options = {} if name.startswith("static") else {"sparsity": 0.5}
    rp.attach(model, optimizer, name, total_steps=200, **options)  # type: ignore[arg-type]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = []
    for factor in (1.0, float("inf")):
        before = [p.detach().clone() for p in model.parameters()]
        x, y = batch(1)
        scaler.scale(factor * nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters())) is (factor > 1.0)


def test_sparseopt_scales_rows_by_their_density() -> None:
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rp.attach(model, optimizer, "static", total_steps=5, extras=[rp.extras.SparseOpt()])
    model.weight.grad = torch.full((2, 4), 0.1)
    optimizer.step()
    dense, thin = math.sqrt(1.0 / 0.625), math.sqrt(0.25 / 0.625)
    assert torch.allclose(model.weight.detach()[0], torch.full((4,), 1 - 0.1 * dense))
    assert torch.allclose(model.weight.detach()[1], torch.tensor([1 - 0.1 * thin, 0.0, 0.0, 0.0]))
    assert torch.allclose(model.weight.grad[0], torch.full((4,), 0.1))  # put back for whoever reads it


def test_covers_by_hand() -> None:
    values = torch.tensor([[3.0, 9.0, 1.0], [2.0, 8.0, 7.0]])
    assert row_cover(values).tolist() == [[False, True, False], [False, True, False]]
    assert row_and_column_cover(values).tolist() == [[True, True, False], [False, True, True]]
    assert matching_cover(values).tolist() == [[False, True, False], [False, False, True]]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 10**6))
def test_the_matching_is_the_greedy_one_and_full(m: int, n: int, seed: int) -> None:
    values = torch.rand(m, n, generator=torch.Generator().manual_seed(seed))
    mask = matching_cover(values)
    assert int(mask.sum()) == min(m, n) == rp.rank.structural_rank(mask)
    rows, columns, expected = set(range(m)), set(range(n)), torch.zeros(m, n, dtype=torch.bool)
    for flat in values.view(-1).argsort(descending=True).tolist():
        i, j = divmod(flat, n)
        if i in rows and j in columns:
            expected[i, j] = True
            rows.remove(i)
            columns.remove(j)
    assert torch.equal(mask, expected)


@pytest.mark.parametrize("cover", ["row", "row+column", "matching"])
@pytest.mark.parametrize("method", ["gmp", "rigl", "rpg", "magnitude", "set", "feather", "acdc"])
def test_the_floor_holds_at_every_step(method: str, cover: str) -> None:
    """Where the budget allows it: no dead row, no dead channel, full structural rank; and the count stays exact."""
    if method not in rp.list_methods():
        pytest.skip(f"{method} is not here yet")
    model = cnn()
    optimizer = sgd(model)
    floor = rp.extras.RankFloor(cover=cover, most=1.0)  # type: ignore[arg-type]
    sp = attach(model, optimizer, method, sparsity=0.94, extras=[floor])

    def holds(_: int) -> None:
        for mask in sp.masks.values():
            assert bool(mask.flatten(1).any(1).all())
            if cover == "row+column":
                assert bool(mask.transpose(0, 1).flatten(1).any(1).all())
            if cover == "matching":
                matrix = mask.flatten(1)
                assert rp.rank.structural_rank(matrix) == min(matrix.shape)

    train(model, optimizer, 1, STEPS, holds)
    sp.finalize()


def test_without_the_floor_rows_die() -> None:
    """The control: plain magnitude at the same sparsity leaves rows empty."""
    model = cnn()
    rp.prune(model, "magnitude", sparsity=0.94)
    assert sum(row.dead_rows for row in rp.rank.profile(model).rows) > 0


def test_a_floor_too_dear_caps_the_wide_layers_and_leaves_the_narrow_whole() -> None:
    """Of rows 8, 16 and 10, with 27 weights for the floor: 8, 9 and 9, not a part in proportion."""
    model = cnn()
    prunable = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    sp = attach(model, sgd(model), "magnitude", sparsity=1 - 54 / prunable, extras=[rp.extras.RankFloor(most=0.5)])
    assert sp.budget == 54
    assert [layer.state["floor"].numel() for layer in sp.layers] == [8, 9, 9]


def test_the_floor_is_scaled_down_to_its_part_of_the_budget() -> None:
    model = cnn()
    sp = attach(model, sgd(model), "magnitude", sparsity=0.97, extras=[rp.extras.RankFloor(most=0.25)])
    held = sum(layer.state["floor"].numel() for layer in sp.layers)
    assert 0 < held <= 0.25 * sp.budget
    counts = {layer.state["floor"].numel() for layer in sp.layers}
    assert len(counts) == 1  # the same cap for all
    assert held + len(sp.layers) > 0.25 * sp.budget  # and no higher one fits
    half = cnn()
    sp = attach(half, sgd(half), "magnitude", sparsity=0.9, extras=[rp.extras.RankFloor(share=0.5, most=1.0)])
    assert [layer.state["floor"].numel() for layer in sp.layers] == [4, 8, 5]
    for bad in ({"cover": "all"}, {"share": 0.0}, {"most": 1.5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            rp.extras.RankFloor(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["gmp", "rpg", "acdc", "feather"])
def test_a_share_of_the_floor_is_the_same_share_at_every_update(method: str) -> None:
    """Also once rows that it does not hold are dead, and a method that only cuts cannot choose anew."""
    model = cnn()
    optimizer = sgd(model)
    sp = attach(model, optimizer, method, sparsity=0.97, extras=[rp.extras.RankFloor(share=0.5, most=1.0)])

    def holds(_: int) -> None:
        assert [layer.state["floor"].numel() for layer in sp.layers] == [4, 8, 5]

    train(model, optimizer, 1, STEPS, holds)
    assert all(bool(layer.mask.view(-1)[layer.state["floor"]].all()) for layer in sp.layers)
    sp.finalize()


def test_the_floor_resumes_bit_exactly() -> None:
    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, rp.Sparsifier]:
        model = cnn()
        optimizer = sgd(model)
        floor = rp.extras.RankFloor(cover="matching", every=7)
        return model, optimizer, attach(model, optimizer, "rpg", extras=[floor])

    model, optimizer, sp = fresh()
    train(model, optimizer, 1, 10)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), sp.state_dict()])
    again, other, resumed = fresh()
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    resumed.load_state_dict(saved[2])
    train(model, optimizer, 11, STEPS)
    train(again, other, 11, STEPS)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))


@pytest.mark.parametrize("energies", [[0.5, 0.3, 0.15, 0.05], [0.48, 0.47, 0.05], [0.3, 0.3, 0.3, 0.1], [0.9, 0.1], [0.25] * 4])
@pytest.mark.parametrize("delta", [0.05, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9])
def test_tail_taylor_splits_the_energies(energies: list[float], delta: float) -> None:
    """Also where the tail nearest δ̃ is on the other side of 1/2 than δ̃ is: 0.52, nearer to 0.3 than 0.05."""
    torch.manual_seed(0)
    size = len(energies)
    left, right = (torch.linalg.qr(torch.randn(n, size, dtype=torch.float64))[0] for n in (6, 10))
    weight = 3.0 * (left * torch.tensor(energies, dtype=torch.float64).sqrt()) @ right.T
    weight = weight + 1e-3 * torch.randn(6, 10, dtype=torch.float64)  # no two singular values alike
    unit, tail = unit_and_tail(weight, delta)
    u, s, v = torch.linalg.svd(weight / weight.norm(), full_matrices=False)
    k = rp.rank.choose_k(weight, delta)
    assert torch.allclose(tail, (u[:, k:] * s[k:]) @ v[k:], atol=1e-9)
    assert float((unit * tail).sum()) == pytest.approx(float((s[k:] ** 2).sum()), abs=1e-9)
    assert float(unit.square().sum()) == pytest.approx(1.0)


def test_tail_taylor_keeps_counts_and_raises_rank() -> None:
    """On a matrix with a few large rows, cutting by the mixed score leaves a higher rank than magnitude does."""
    torch.manual_seed(1)
    weight = torch.randn(32, 64) * torch.linspace(0.05, 1.0, 32)[:, None]

    def prune(*extras: rp.Extra) -> nn.Module:
        model = nn.Linear(64, 32, bias=False)
        with torch.no_grad():
            model.weight.copy_(weight)
        rp.attach(model, sgd(model), "magnitude", sparsity=0.95, total_steps=5, extras=extras)
        return model

    plain, mixed, zero = prune(), prune(rp.extras.TailTaylor(mu=0.6)), prune(rp.extras.TailTaylor(mu=0.0))
    assert torch.equal(plain.weight, zero.weight)
    assert int((mixed.weight != 0).sum()) == int((plain.weight != 0).sum()) == 102
    assert rp.rank.exact_rank(mixed.weight) > rp.rank.exact_rank(plain.weight)


def test_rank_steer_moves_cut_latents_only() -> None:
    """Of the latents, those that are out move by κ · rms(g)/rms(q) · q more, q the rank gradient; others do not."""
    kappa, rate = 0.5, 0.05
    moves = []
    for strength in (0.0, kappa):
        model = cnn(dtype=torch.float64)
        optimizer = sgd(model, lr=rate, momentum=0.0, weight_decay=0.0)
        steer = rp.extras.RankSteer(kappa=strength, every=4, above=0.1)
        sp = rp.attach(model, optimizer, rp.methods.Feather(sparsity=0.9, theta=0.5), total_steps=8, extras=[steer])
        train(model, optimizer, 1, 3)  # not yet
        before = [layer.state["latent"].clone() for layer in sp.layers]
        cut = [~layer.mask for layer in sp.layers]
        train(model, optimizer, 4, 4)
        moves.append([layer.state["latent"] - b for layer, b in zip(sp.layers, before)])
    for plain, steered, latent, out in zip(*moves, before, cut):
        assert torch.equal(plain[~out], steered[~out])
        q = rp.rank.rank_grad(latent.masked_fill(out, 0.0), 0.2)[out]
        scale = kappa * plain[out].square().mean().sqrt() / q.square().mean().sqrt()  # plain is -lr times the gradient
        assert torch.allclose(steered[out] - plain[out], -scale * q, atol=1e-12)
        assert bool(q.any())


@pytest.mark.parametrize("at", [8, 9, 10])
def test_rank_steer_resumes_bit_exactly(at: int) -> None:
    """Step 10 is one of those that steer: also if it is the first after a resume."""

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, rp.Sparsifier]:
        model = cnn()
        optimizer = sgd(model)
        return model, optimizer, attach(model, optimizer, "feather", extras=[rp.extras.RankSteer(every=5, above=0.1)])

    model, optimizer, sp = fresh()
    train(model, optimizer, 1, at)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), sp.state_dict()])
    train(model, optimizer, at + 1, STEPS)
    again, other, resumed = fresh()
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    resumed.load_state_dict(saved[2])
    train(again, other, at + 1, STEPS)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))


def grown_lives(extras: list[rp.Extra]) -> set[int]:
    """After how many updates the weights that five updates grow are cut; gradients ask for four new places each time.

    Learning is too slow for a grown weight to catch up with the old ones.
    """
    model = nn.Linear(40, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    sp = rp.attach(model, optimizer, "rigl", sparsity=0.5, total_steps=1000, every=1, grow=0.2, extras=extras)
    sp.set_masks({"weight": (torch.arange(40) < 20)[None]})
    with torch.no_grad():
        model.weight.copy_(torch.arange(40.0, 0.0, -1.0)[None] * sp.masks["weight"])
    born, lives = {}, set()
    for update in range(5):
        asked = range(20 + 4 * update, 24 + 4 * update)
        model.weight.grad = torch.tensor([[float(place in asked) for place in range(40)]])
        optimizer.step()
        kept = {place for place in range(20, 40) if sp.masks["weight"][0, place]}
        lives |= {update - born.pop(place) for place in list(born) if place not in kept}
        born |= dict.fromkeys(kept - born.keys(), update)
    return lives


def test_grace_gives_a_grown_weight_its_updates() -> None:
    assert grown_lives([]) == {1}  # the control: cut at the very next update
    assert grown_lives([rp.extras.Grace(updates=2, most=1.0)]) == {3}
    assert grown_lives([rp.extras.Grace(updates=3, most=1.0)]) == {4}


def test_grace_holds_the_largest_where_it_may_not_hold_all() -> None:
    model = nn.Linear(10, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sp = rp.attach(model, optimizer, "rigl", sparsity=0.4, total_steps=10, every=1, extras=[rp.extras.Grace(most=0.5)])
    (layer,) = sp.layers
    mask = torch.tensor([[True] * 6 + [False] * 4])
    sp.set_masks({"weight": mask})
    layer.state["grace"] = torch.full_like(mask, -1, dtype=torch.int8)  # all six are new
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[6.0, 1.0, 5.0, 2.0, 4.0, 3.0, 0.0, 0.0, 0.0, 0.0]]))
    (held,) = sp.groups[0].extras[0].reserve(sp.groups[0]).values()
    assert held.tolist() == [[True, False, True, False, True, False, False, False, False, False]]
    assert layer.state["grace"].tolist() == [[3] * 6 + [-1] * 4]


def test_grace_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="updates=0 is not"):
        rp.extras.Grace(updates=0)
    with pytest.raises(ValueError, match=r"most=0\.0 is not a share"):
        rp.extras.Grace(most=0.0)


def test_grace_goes_on_where_it_stopped() -> None:
    def begun() -> tuple[nn.Module, torch.optim.Optimizer, rp.Sparsifier]:
        model = cnn()
        optimizer = sgd(model)
        return model, optimizer, attach(model, optimizer, "rigl+grace")

    whole, optimizer, sp = begun()
    train(whole, optimizer, 1, 7)
    saved = copy.deepcopy((whole.state_dict(), optimizer.state_dict(), sp.state_dict()))
    train(whole, optimizer, 8, STEPS)
    again, second, resumed = begun()
    resumed.load_state_dict(saved[2])
    again.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    train(again, second, 8, STEPS)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters()))
    assert all(torch.equal(a.state["grace"], b.state["grace"]) for a, b in zip(sp.layers, resumed.layers))
