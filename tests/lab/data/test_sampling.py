from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankprune.lab.data import DataError, load_data
from rankprune.lab.data.memory import MemoryData
from rankprune.lab.data.sampling import Sampling, evenly, seed_of

worlds = st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(5, 60), st.integers(1, 40), st.integers(1, 20))


@given(worlds)
@settings(deadline=None)
def test_ranks_share_an_epoch_without_overlap(case: tuple[int, int, int, int, int]) -> None:
    world, epoch, train, test, batch = case
    ranks = [Sampling(train, test, batch, 7, rank, world) for rank in range(world)]
    batches = [[indices[s.own] for _, indices in s.train_batches(epoch)] for s in ranks]
    assert {len(one) for one in batches} == {ranks[0].batches_per_epoch}
    assert ranks[0].batches_per_epoch >= 1
    assert {len(part) for one in batches for part in one} == {ranks[0].batch_size}
    seen = torch.cat([part for one in batches for part in one])
    assert len(seen.unique()) == len(seen)
    assert train - len(seen) < ranks[0].step_size


@given(worlds)
@settings(deadline=None)
def test_test_samples_come_once_and_shares_are_equal(case: tuple[int, int, int, int, int]) -> None:
    world, _, train, test, batch = case
    parts = [Sampling(train, test, 3, 0, rank, world).test_batches(batch) for rank in range(world)]
    assert len({tuple(len(part) for part in one) for one in parts}) == 1
    indices = torch.cat([part for one in parts for part in one])
    assert sorted(indices[indices >= 0].tolist()) == list(range(test))
    assert (indices < 0).sum() < world


def test_two_ranks_together_are_one_process_of_twice_the_batch() -> None:
    single = Sampling(50, 10, 8, seed=3)
    pair = [Sampling(50, 10, 4, 3, rank, 2) for rank in (0, 1)]
    for (_, whole), (_, a), (_, b) in zip(single.train_batches(2), pair[0].train_batches(2), pair[1].train_batches(2)):
        assert torch.equal(whole, torch.cat([a[pair[0].own], b[pair[1].own]]))


def test_start_batch_continues_the_same_epoch() -> None:
    s = Sampling(50, 10, 8, seed=3)
    whole, rest = s.train_batches(1), s.train_batches(1, 4)
    assert [n for n, _ in rest] == [4, 5]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(whole[4:], rest, strict=True))
    assert s.train_batches(1, 6) == []


def test_epochs_and_seeds_differ() -> None:
    orders = [Sampling(500, 1, 500, seed).train_batches(epoch)[0][1] for seed in (0, 1) for epoch in (0, 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(orders) for b in orders[:i])


@given(st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), min_size=2, max_size=6, unique=True))
def test_seeds_of_different_keys_differ(keys: list[tuple[int, ...]]) -> None:
    seeds = [seed_of(*key) for key in keys]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


@given(st.integers(1, 200), st.integers(1, 250))
def test_evenly_is_spread_and_unique(size: int, limit: int) -> None:
    chosen = evenly(size, limit)
    assert len(chosen) == min(size, limit)
    gaps = torch.diff(torch.cat([chosen, torch.tensor([size])]))
    assert chosen[0] == 0
    assert gaps.min() >= 1
    assert gaps.max() - gaps.min() <= 1


def test_few_images_make_one_small_batch() -> None:
    s = Sampling(10, 1, 128, world_size=3)
    assert (s.batch_size, s.batches_per_epoch) == (3, 1)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"rank": 2, "world_size": 2}, "rank=2 within world_size=2"),
        ({"world_size": 99}, "50 training .* too few for 99 process"),
    ],
)
def test_senseless_settings(case: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Sampling(**{"train_size": 50, "test_size": 10, "batch_size": 8, **case})


def test_senseless_places() -> None:
    s = Sampling(50, 10, 8)
    for place in ((0, 7), (0, -1), (-1, 0)):
        with pytest.raises(DataError, match="with 6 batches each"):
            s.train_batches(*place)
    with pytest.raises(DataError, match="limit of 0 images"):
        evenly(10, 0)


def test_repeats_are_neighbours_and_an_epoch_is_no_longer() -> None:
    s = Sampling(50, 10, 8, seed=3, repeats=3)
    order = torch.cat([indices for _, indices in s.train_batches(0)])
    assert len(order) == 48
    assert torch.equal(order.view(16, 3), order[::3, None].expand(16, 3))
    assert len(order.unique()) == 16


def test_repeats_are_those_of_timm() -> None:
    """The samples of one step over all ranks are the ones timm's sampler deals out, for the same permutation."""
    samplers = pytest.importorskip("timm.data.distributed_sampler")
    ours = Sampling(512, 1, 8, 3, 0, 4, repeats=3)
    order = ours._pass(0).flatten()[::3]

    class Fixed(samplers.RepeatAugSampler):
        pass

    theirs = [Fixed(range(512), num_replicas=4, rank=rank, shuffle=False, num_repeats=3) for rank in range(4)]
    dealt = [list(one)[:8] for one in theirs]  # of the identity permutation
    step = ours._pass(0)[0]
    assert sorted(order[torch.tensor(dealt).flatten()].tolist()) == sorted(step.tolist())


@given(st.integers(1, 12), st.integers(3, 30))
@settings(deadline=None)
def test_epochs_of_so_many_steps_cut_the_stream_of_passes(steps: int, train: int) -> None:
    whole = Sampling(train, 1, 3, seed=1)
    cut = Sampling(train, 1, 3, seed=1, steps=steps)
    assert cut.batches_per_epoch == steps
    passes = [indices for epoch in range(steps * 3) for _, indices in whole.train_batches(epoch)]
    stream = [indices for epoch in range(3) for _, indices in cut.train_batches(epoch)]
    assert all(torch.equal(a, b) for a, b in zip(stream, passes))
    assert [n for n, _ in cut.train_batches(2, steps - 1)] == [steps - 1]
    assert torch.equal(cut.train_batches(2, steps - 1)[0][1], stream[-1])


def test_a_held_out_part_takes_the_place_of_the_test_set_and_is_not_trained_on() -> None:
    whole = load_data("fashion")
    held = load_data("fashion", holdout=300)
    assert isinstance(whole, MemoryData)
    assert isinstance(held, MemoryData)
    assert held.test_size == 300
    assert held.train_size == whole.train_size - 300
    rows = {bytes(image.numpy().tobytes()) for image in held.images.test_images}
    trained = {bytes(image.numpy().tobytes()) for image in held.images.train_images}
    originals = {bytes(image.numpy().tobytes()) for image in whole.images.train_images}
    assert rows <= originals
    assert rows.isdisjoint(trained)
    assert rows.isdisjoint(bytes(image.numpy().tobytes()) for image in whole.images.test_images)


@pytest.mark.parametrize("count", [100_000, 0])
def test_a_held_out_part_is_smaller_than_the_set(count: int) -> None:
    with pytest.raises(DataError, match=f"holdout={count} is not a part of the"):
        load_data("fashion", holdout=count)
