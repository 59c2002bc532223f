"""The compact file: lossless, small, deterministic, and a reader that trusts nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rankprune as rp
from _nets import cnn
from rankprune.formats import codes as _codes
from rankprune.formats import sparse
from rankprune.lab.models.errors import WeightsError
from rankprune.lab.models.weights import read_state_dict


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 10**6))
def test_every_code_gives_the_indices_back(size: int, density: float, seed: int) -> None:
    indices = np.flatnonzero(np.random.default_rng(seed).random(size) < density)
    lengths = []
    for name, parameter in _codes.candidates(indices.size, size):
        data = _codes.encode(name, parameter, indices, size)
        assert np.array_equal(_codes.decode(name, parameter, data, indices.size, size), indices), name
        assert _codes._length(name, parameter, _codes._gaps(indices), size) == len(data)
        lengths.append(len(data))
    assert len(_codes.shortest(indices, size)[2]) == min(lengths) <= (size + 7) // 8


def test_gaps_by_hand() -> None:
    indices = np.array([0, 3, 258 + 3, 258 + 4])  # gaps 0, 2, 257, 0
    assert _codes._encode_gaps(indices, 600, 8) == bytes([0, 2, 255, 2, 0])
    assert _codes._encode_rice(np.array([5]), 8, 1) == bytes([0b10000000, 0b00100000])  # 5 = 2 · 2 + 1: low 1, then 001


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]),
       st.lists(st.integers(0, 7), max_size=3), st.floats(0, 1), st.integers(0, 10**6))  # fmt: skip
def test_tensors_come_back_bit_for_bit(dtype: torch.dtype, shape: list[int], density: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = (torch.randn(shape, generator=generator) * 3).to(dtype)
    if dtype.is_floating_point:
        tensor = tensor.masked_fill(torch.rand(shape, generator=generator) > density, 0.0)
        flat = tensor.view(-1)
        flat[:1], flat[1:2], flat[2:3] = -0.0, float("nan"), float("-inf")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rp.save({"t": tensor, "other": torch.ones(3)}, Path(folder) / "f")
        back = rp.load(Path(folder) / "f")
    assert back["t"].dtype == dtype
    assert back["t"].shape == tensor.shape
    assert back["t"].contiguous().view(-1).view(torch.uint8).tolist() == tensor.contiguous().view(-1).view(torch.uint8).tolist()


def test_resnet50_is_small_and_quick_to_read(tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.resnet50(weights=None)
    dense = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    for sparsity, limit in ((0.98, 0.032), (0.99, 0.0175)):
        rp.prune(model, "magnitude", sparsity=sparsity, distribution="erk")
        rp.save(model, tmp_path / "m")
        assert (tmp_path / "m").stat().st_size / dense <= limit
        seconds = []
        for _ in range(3):
            start = time.process_time()  # on one thread this is the time it takes, whatever else the machine does
            state = rp.load(tmp_path / "m")
            seconds.append(time.process_time() - start)
        assert min(seconds) < 0.5
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_half_precision_values(tmp_path: Path) -> None:
    model = cnn()
    rp.prune(model, sparsity=0.9)
    sizes = {}
    for values in ("exact", "float16", "bfloat16"):
        rp.save(model, tmp_path / values, values=values)  # type: ignore[arg-type]
        sizes[values] = (tmp_path / values).stat().st_size
        state = rp.load(tmp_path / values)
        for name, tensor in model.state_dict().items():
            assert torch.allclose(state[name].double(), tensor.double(), rtol=1e-2, atol=1e-6)
            assert torch.equal(state[name] == 0, tensor == 0)
    assert sizes["float16"] < sizes["exact"]
    for wrong in ("int8", "float32"):
        with pytest.raises(ValueError, match=f"values='{wrong}'"):
            rp.save(model, tmp_path / "x", values=wrong)  # type: ignore[arg-type]


def test_half_precision_never_makes_a_weight_infinite(tmp_path: Path) -> None:
    weight = torch.zeros(100)
    weight[3], weight[7] = 70000.0, float("inf")
    with pytest.raises(ValueError, match=r"^w has weights up to 7\.0e\+04, too large for float16"):
        rp.save({"w": weight}, tmp_path / "w", values="float16")
    assert not (tmp_path / "w").exists()
    rp.save({"w": weight}, tmp_path / "w", values="bfloat16")
    assert torch.allclose(rp.load(tmp_path / "w")["w"], weight, rtol=2**-8)


def test_half_precision_names_a_way_that_is_wide_enough(tmp_path: Path) -> None:
    weight = torch.zeros(100, dtype=torch.float64)
    weight[3] = 1e300
    for values in ("float16", "bfloat16"):
        with pytest.raises(ValueError, match=f"too large for {values}: use 'exact'"):
            rp.save({"w": weight}, tmp_path / "w", values=values)


def test_views_of_one_memory_are_tied_only_if_they_are_the_same(tmp_path: Path) -> None:
    weight = torch.randn(6, 6) * (torch.rand(6, 6) < 0.3)
    state = {"w": weight, "tied": weight, "turned": weight.t(), "bits": weight.view(torch.int32), "row": weight[:1]}
    rp.save(state, tmp_path / "w")
    loaded = rp.load(tmp_path / "w")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    assert loaded["tied"].data_ptr() == loaded["w"].data_ptr()


def test_entries_that_no_file_can_hold_are_named(tmp_path: Path) -> None:
    odd = {"count": 3, "lazy": torch.empty(3, device="meta"), "coo": torch.eye(3).to_sparse()}
    for name, entry in odd.items():
        with pytest.raises(ValueError, match=f"^{name} is no "):
            rp.save({"w": torch.ones(2), name: entry}, tmp_path / "w")  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"^rankprune\.sparse is a name"):
        rp.save({"rankprune.sparse": torch.ones(2)}, tmp_path / "w")
    assert not list(tmp_path.iterdir())


def test_half_precision_leaves_half_tensors_alone(tmp_path: Path) -> None:
    weight = torch.zeros(100, dtype=torch.bfloat16)
    weight[3] = 1e20
    rp.save({"w": weight}, tmp_path / "w", values="float16")
    assert torch.equal(rp.load(tmp_path / "w")["w"], weight)


def crafted(path: Path, shape: list[int], dtype: str = "float64", **more: object) -> Path:
    """A file with a right checksum that states one sparse tensor of one non-zero, whatever its shape."""
    data = bytes([0]) + torch.ones(1, dtype=torch.float16).view(torch.uint8).numpy().tobytes()
    item = {"name": "w", "shape": shape, "dtype": dtype, "values": "float16", "count": 1, "code": "gap8", "parameter": 8,
            "bytes": 1}  # fmt: skip
    blob = {"rankprune.sparse": torch.frombuffer(bytearray(data), dtype=torch.uint8)}
    entry = {"version": 1, "tied": {}, "sparse": [item], **more}
    entry["crc"] = sparse._checksum(entry, blob)
    path.write_bytes(safetensors.torch.save(blob, {"rankprune": json.dumps(entry)}))
    return path


def test_a_small_file_may_not_ask_for_the_whole_memory(tmp_path: Path) -> None:
    small = crafted(tmp_path / "small", [1000, 1000])
    assert float(rp.load(small)["w"].sum()) == 1
    large = crafted(tmp_path / "large", [1 << 15, 1 << 15])
    assert large.stat().st_size < 400
    with pytest.raises(ValueError, match=r"large declares sparse tensors of 8\.59 GB, and 1\.07 GB .* max_bytes=8589934592"):
        rp.load(large)
    with pytest.raises(ValueError, match=r"0\.01 GB, and 0\.00 GB are allowed"):
        rp.load(small, max_bytes=1000)
    with pytest.raises(WeightsError, match=r"declares sparse tensors of 8\.59 GB"):
        read_state_dict(large)
    with pytest.raises(ValueError, match="large declares sparse tensors"):  # the sum over a thousand tensors, too
        rp.load(crafted(large, [0], sparse=[{"shape": [1 << 18], "dtype": "float64"}] * 1000))


def test_a_model_s_own_size_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "_MAX_BYTES", 0)
    monkeypatch.setattr(sparse, "_MAX_RATIO", 0)
    model = torch.nn.Linear(300, 300, bias=False)
    rp.prune(model, sparsity=0.999)
    rp.save(model, tmp_path / "m")
    with pytest.raises(ValueError, match="max_bytes=360000 to"):
        rp.load(tmp_path / "m")
    assert torch.equal(rp.load(tmp_path / "m", model)["weight"], model.weight)


@pytest.mark.parametrize("more", [{"tied": {"w": "w"}}, {"tied": {"x": "y"}}, {"sparse": [{}]}, {"sparse": [[]]},
                                  {"sparse": None}, {"tied": []}])  # fmt: skip
def test_entries_that_contradict_each_other(more: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"odd is damaged .*: use another copy"):
        rp.load(crafted(tmp_path / "odd", [3], **more))


def test_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "deep").write_bytes(safetensors.torch.save({}, {"rankprune": "[" * 100_000}))
    with pytest.raises(ValueError, match=r"deep is damaged .*: use another copy"):
        rp.load(tmp_path / "deep")


def test_a_mapping_that_makes_its_tensors_on_access(tmp_path: Path) -> None:
    """A tensor that is freed while the file is written may leave its address to the next one: they are not tied."""

    class OnAccess(Mapping[str, torch.Tensor]):
        def __getitem__(self, name: str) -> torch.Tensor:
            weight = torch.zeros(100_000)
            weight[int(name)] = 1
            return weight

        def __iter__(self) -> Iterator[str]:
            return map(str, range(8))

        def __len__(self) -> int:
            return 8

    rp.save(OnAccess(), tmp_path / "w")
    assert [int(weight.argmax()) for weight in rp.load(tmp_path / "w").values()] == list(range(8))


def test_conjugate_and_negative_views_are_stored_as_their_values(tmp_path: Path) -> None:
    weight = torch.randn(4, dtype=torch.complex64)
    state = {"w": weight, "conj": weight.conj(), "imag": weight.imag, "negative": weight.conj().imag}
    rp.save(state, tmp_path / "w")
    loaded = rp.load(tmp_path / "w")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_about_comes_back_as_json_holds_it(tmp_path: Path) -> None:
    rp.save({"w": torch.ones(2)}, tmp_path / "w", about={"classes": {9: "a", 10: "b"}})
    assert sparse.read_about(tmp_path / "w") == {"classes": {"9": "a", "10": "b"}}
    assert torch.equal(rp.load(tmp_path / "w")["w"], torch.ones(2))
    with pytest.raises(ValueError, match=r"^about=.* is not plain values .*: use "):
        rp.save({"w": torch.ones(2)}, tmp_path / "x", about={"classes": {1, 2}})


def test_tensors_without_a_plain_storage_are_named(tmp_path: Path) -> None:
    class Wrapped(torch.Tensor):
        """As DTensor and torchao's quantized weights are: a shape without a storage of its own."""

        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapped:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

        def __init__(self, inner: torch.Tensor) -> None:
            self.inner = inner

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["inner"], None

        @staticmethod
        def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: None, size: object, stride: object) -> Wrapped:
            return Wrapped(inner["inner"])

        @classmethod
        def __torch_dispatch__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            raise NotImplementedError

    odd = {
        "wrapped": Wrapped(torch.ones(3)),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "lazy": torch.nn.LazyLinear(3).weight,
        "wide": torch.zeros(3, dtype=torch.complex128),
    }
    for name, entry in odd.items():
        with pytest.raises(ValueError, match=f"^{name} is "):
            rp.save({"w": torch.ones(2), name: entry}, tmp_path / "w")
    assert not list(tmp_path.iterdir())


def test_a_shape_beyond_every_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"huge is damaged .*: use another copy"):
        rp.load(crafted(tmp_path / "huge", [(1 << 47) - 1] * 30))


def test_indices_that_wrap_around_are_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of 64-bit numbers wrap around as their sums do, so that only a comparison notices."""
    wrapped = np.array([0, 2**63 - 1, -(2**63) + 10, 5])
    monkeypatch.setitem(_codes._DECODERS, "rice", lambda *_: wrapped)
    with pytest.raises(_codes.BadCode, match="out of order"):
        _codes.decode("rice", 40, b"", 4, 100)
