"""Modules with several inputs and outputs of any type: the numbers of torch, for any batch and any sequence length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import rankprune as rp
from rankprune.engine import compile as compiled
from rankprune.engine.compile import Compiled


def same(model: nn.Module, fast: Compiled, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        want = model(*args, **kwargs)
    first, spec = pytree.tree_flatten(want)
    second, other = pytree.tree_flatten(fast(*args, **kwargs))
    assert spec == other
    assert any(isinstance(a, Tensor) for a in first)
    for a, b in zip(first, second):
        if isinstance(a, Tensor) and a.is_floating_point():
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert (a - b).abs().max() <= 1e-5 * a.abs().max()
        else:
            assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 30, shape, generator=torch.Generator().manual_seed(seed))


class Text(nn.Module):
    """Token ids with a padding mask; recurrent layers or an encoder of torch between."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(30, 16), nn.Linear(16, 5)
        self.kind = kind
        if kind == "encoder":
            self.body: nn.Module = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        else:
            self.body = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](16, 16, batch_first=True)

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> dict[str, Any]:
        x = self.embed(tokens)
        if self.kind == "encoder":
            x = self.body(x, src_key_padding_mask=None if keep is None else ~keep.bool())
        else:
            x, _ = self.body(x)
        scores = self.head(x)
        best = scores.max(-1)
        return {"scores": scores, "best": (best.values, best.indices), "length": tokens.shape[1], "none": None}


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # of torch.export over recurrent layers
@pytest.mark.parametrize("kind", ["lstm", "gru", "encoder"])
def test_token_ids_of_any_length(kind):
    model = Text(kind).eval()
    fast = rp.compile(model, ids(2, 6), threads=1, tune=False)
    for batch, length in ((1, 6), (2, 6), (5, 6), (3, 9), (1, 1)):
        same(model, fast, ids(batch, length))
    assert "aten.linear.default" not in fast.islands


def test_positional_keyword_and_none_inputs():
    model = Text("encoder").eval()
    keep = torch.ones(2, 6, dtype=torch.int64)
    keep[1, 4:] = 0
    fast = rp.compile(model, {"tokens": ids(2, 6), "keep": keep}, threads=1, tune=False)
    same(model, fast, ids(2, 6, seed=1), keep)
    same(model, fast, ids(1, 6, seed=1), keep=keep[1:])
    same(model, fast, keep=keep, tokens=ids(2, 6, seed=2))
    same(model, fast, ids(4, 6, seed=3), None)
    same(model, fast, ids(4, 6, seed=3))
    assert len(fast._entries) == 3  # with a mask, with None, and without one


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(6, 8), nn.Linear(4, 8)

    def forward(self, inputs: dict[str, Any], scale: float = 1.0, table: Tensor | None = None) -> tuple[Tensor, Any]:
        first, second = inputs["pair"]
        y = F.relu(self.one(first) + self.two(second)) * scale
        return y if table is None else y @ table, {"mask": y > 0, "count": (y > 0).sum(1)}


def test_structures_of_inputs_and_a_tensor_without_a_batch():
    model = Pair().eval()
    make = lambda n: {"pair": (torch.randn(n, 6), torch.randn(n, 4))}  # noqa: E731
    fast = rp.compile(model, (make(3),), threads=1, tune=False)
    same(model, fast, make(3))
    same(model, fast, make(1))
    same(model, fast, make(2), 0.5)
    table = torch.randn(8, 2)
    for n in (1, 2, 8):  # as many rows as the table, too
        same(model, fast, make(n), table=table)
    assert len(fast._entries) == 3


def test_forward_with_any_number_of_arguments():
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, *parts: Tensor, **more: Tensor) -> Tensor:
            return self.layer(sum(parts)) + sum(more.values())

    model = Many().eval()
    x, y, z = torch.randn(3, 3, 4)
    same(model, rp.compile(model, (x, y), threads=1, tune=False), x[:1], y[:1])
    fast = rp.compile(model, (x, y, z), threads=1, tune=False)
    assert fast.islands == ()
    same(model, fast, x, y, z)
    same(model, fast, x, more=y)


class Picked(nn.Module):
    """Results that are indices, masks or of another shape than the inputs'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x)
        pooled = F.adaptive_max_pool2d(y, 1).flatten(1)
        values, places = self.head(pooled).topk(2)
        return values, places, y.argmax(1), y.max(2).values, (y > 0).any(-1), y.flatten(1).sort().indices[:, :3]


def test_several_outputs_of_any_type():
    model = Picked().eval()
    x = torch.randn(5, 3, 8, 8)
    fast = rp.compile(model, x, threads=1, tune=False)
    same(model, fast, x)
    same(model, fast, x[:1])
    assert not {"aten.conv2d.default", "aten.linear.default"} & set(fast.islands)


def test_another_image_size_is_compiled_when_it_comes():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)).eval()
    fast = rp.compile(model, torch.randn(1, 3, 9, 9), threads=1, tune=False)
    for size in range(5, 7 + compiled.PROGRAMS):
        same(model, fast, torch.randn(2, 3, size, 8))
    assert len(fast._entries) == compiled.PROGRAMS
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(ValueError, match=r"float32 \(batch, 3, 9, 9\), and its module has changed since: compile it again"):
        fast(torch.randn(2, 3, 40, 8))


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m), lambda m: nn.DataParallel(torch.compile(m))])
def test_wrappers_are_taken_off(wrap):
    inner = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    x = torch.randn(3, 4)
    fast = rp.compile(wrap(inner).eval(), x, threads=1, tune=False)
    assert fast.islands == ()
    same(inner, fast, x)


def test_a_compiled_part_is_followed():
    inner = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    outer = nn.Sequential(torch.compile(inner, backend="eager"), nn.Linear(2, 2)).eval()
    x = torch.randn(3, 4)
    fast = rp.compile(outer, x, threads=1, tune=False)
    assert fast.islands == ()
    same(outer, fast, x)


class Single(nn.Module):
    """Treats one image in another way than several."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.kind == "squeeze":
            return y.squeeze()
        return y if x.shape[0] > 1 else self.layer(-x)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("squeeze", r"batch 1 torch returns a tensor \(8,\) of float32 and the compiled one a tensor \(1, 8\) of float32"),
        ("branch", r"batch 1 the compiled one differs from torch by .* where the largest number is .*, because its forward"),
    ],
)
def test_a_module_that_treats_one_image_otherwise_is_refused(kind, words, batch):
    with pytest.raises(ValueError, match=words):
        rp.compile(Single(kind).eval(), torch.randn(batch, 4), threads=1, tune=False)


def test_what_torch_export_cannot_follow_is_run_by_torch():
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y if y.sum().item() > 0 else -y

    model = Branch().eval()
    with pytest.warns(UserWarning, match=r"torch\.export cannot follow Branch .*; torch runs the whole module"):
        fast = rp.compile(model, torch.randn(2, 4), threads=1)
    same(model, fast, torch.randn(5, 4))
    assert "torch runs the whole module: torch.export cannot follow Branch" in str(fast.report)
    with pytest.raises(ValueError, match=r"a plan cannot be saved, because torch\.export cannot follow"):
        fast.save("never.plan")


def test_a_module_that_counts_its_calls_in_python_code_is_refused_and_put_back():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return self.layer(x)

    model = Counts().eval()
    with pytest.raises(ValueError, match="it changes calls, a tensor of the module itself"):
        rp.compile(model, torch.randn(2, 4), threads=1)
    assert model.calls.item() == 0


class Likeness(nn.Module):
    """The products of all images with one another: no business of the kernels'."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y @ y.mT


def test_autocast_around_the_call_leaves_islands_in_float32():
    model = Likeness().eval()
    x = torch.randn(3, 4)
    fast = rp.compile(model, x, threads=1, tune=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = fast(x)
    with torch.no_grad():
        assert (got - model(x)).abs().max() <= 1e-6
    assert "aten.matmul.default" in fast.islands


class Queries(nn.Module):
    """Attention by learned queries, or over learned keys, as in DETR or SigLIP's pooling."""

    def __init__(self, constant: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.constant, self.table = constant, nn.Parameter(torch.randn(1, 2, 5, 4))
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).unflatten(-1, (2, 4)).transpose(1, 2)
        table = self.table.expand(x.shape[0], -1, -1, -1)
        q, k = (table, y) if self.constant == "query" else (y, table)
        return F.scaled_dot_product_attention(q, k, y if self.constant == "query" else table)


@pytest.mark.parametrize("constant", ["query", "key"])
def test_attention_with_constants(constant):
    model = Queries(constant).eval()
    fast = rp.compile(model, torch.randn(2, 7, 8), threads=1, tune=False)
    for n in (1, 3):
        same(model, fast, torch.randn(n, 7, 8))


def test_random_numbers_are_drawn_in_each_call():
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + torch.randn(x.shape[0], 3) + torch.rand(3)

    model = Noise().eval()
    fast = rp.compile(model, torch.randn(2, 4), threads=1, tune=False)
    x = torch.randn(2, 4)
    for _ in range(2):
        torch.manual_seed(3)
        with torch.no_grad():
            want = model(x)
        torch.manual_seed(3)
        assert torch.allclose(fast(x), want, atol=1e-5)
        assert not torch.equal(fast(x), fast(x))
