"""Whole networks against torch: outputs, islands, plans, saved files, several callers."""

from __future__ import annotations

import os
import re
import signal
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rankprune as rp
from rankprune.engine import runtime
from rankprune.engine.backend.cores import default_threads
from rankprune.engine.compile import Compiled
from rankprune.lab.models import create_model


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """Measured choices of these tests stay their own; the built kernels are shared."""
    import rankprune.engine.backend.tuning as tuning

    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "cache_folder", lambda: folder)
        yield folder


def pruned(model: nn.Module, density: float = 0.15, seed: int = 0) -> nn.Module:
    """Random masks, and batch norms that do something."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            keep = torch.rand(module.weight.shape, generator=generator) < density
            module.weight.data *= keep / density**0.5
    return model.eval()


def agree(model: nn.Module, shape: tuple[int, ...], batches=(1, 3, 8, 11), tune: bool = False) -> Compiled:
    x = torch.randn(max(batches), *shape, generator=torch.Generator().manual_seed(1))
    fast = rp.compile(model, x[:1], threads=2, tune=tune)
    with torch.no_grad():
        want = model(x)
    for n in batches:
        got = fast(x[:n])
        assert got.shape == want[:n].shape
        assert (got - want[:n]).abs().max() <= 1e-4 * want.abs().max(), n
    return fast


class Odd(nn.Module):
    """Every operator of the engine that the named networks do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding="same"), nn.Conv2d(3, 8, 5, 2, 2, groups=1)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16 * 9, 7)
        self.flat = nn.BatchNorm1d(7)

    def forward(self, x):
        a = F.avg_pool2d(F.relu6(self.one(x)), 3, 2, 1, count_include_pad=False)
        b = F.hardswish(self.two(x))
        b = b * torch.sigmoid(self.excite(F.silu(self.squeeze(b.mean((2, 3), keepdim=True)))))
        y = F.relu(self.norm(torch.cat([a, b], 1)) / 2 - 0.25)
        y = F.adaptive_avg_pool2d(y, 3).flatten(1)
        return F.softmax(self.flat(self.head(y)), -1)


class Preactivation(nn.Module):
    """Batch norm before the convolution, an addition whose both sides are used again, an in-place activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 6, 3, padding=1),
        )

    def forward(self, x):
        a = self.first(x)
        b = self.second(F.relu_(self.norm(a)))
        c = a + b
        return F.gelu(c + a, approximate="tanh") + b


class Unknown(nn.Module):
    """torch.cumsum is not an operator of the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 5, 3), nn.Linear(5, 4)

    def forward(self, x):
        return self.head(torch.cumsum(F.relu(self.conv(x)), 2).mean((2, 3)))


class Encoder(nn.Module):
    """A class token, learned positions, LayerScale, q/k/v by separate layers."""

    def __init__(self, dim: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, dim)), nn.Parameter(torch.randn(1, 17, dim))
        self.norm, self.q, self.kv = nn.LayerNorm(dim), nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.out, self.scale, self.head = nn.Linear(dim, dim), nn.Parameter(torch.rand(dim)), nn.Linear(dim, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        y = self.norm(x)
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # noqa: E731
        k, v = self.kv(y).chunk(2, -1)
        y = F.scaled_dot_product_attention(split(self.q(y)), split(k), split(v)).transpose(1, 2).flatten(2)
        return self.head((x + self.scale * self.out(y))[:, 0])


def test_cifar_networks():
    for name in ("cifar-resnet20", "cifar-vgg19"):
        agree(pruned(create_model(name, num_classes=10)), (3, 32, 32))


def test_resnet18_and_its_saved_plan(tmp_path):
    models = pytest.importorskip("torchvision.models")
    model = pruned(models.resnet18(num_classes=20))
    fast = agree(model, (3, 64, 64))
    fast.save(tmp_path / "net.plan")
    x = torch.randn(9, 3, 64, 64)
    loaded = runtime.load(tmp_path / "net.plan", threads=1)
    assert loaded.input_shapes == [(3, 64, 64)]
    np.testing.assert_array_equal(loaded(x.numpy()), fast(x).numpy())


@pytest.mark.parametrize("make", [Odd, Preactivation, Encoder])
def test_operators(make, tmp_path):
    torch.manual_seed(0)
    shape = {Odd: (3, 18, 18), Preactivation: (3, 9, 11), Encoder: (3, 16, 16)}[make]
    fast = agree(pruned(make(), 0.6), shape)
    assert fast.islands == ()
    fast.save(tmp_path / "net.plan")
    x = torch.randn(2, *shape)
    np.testing.assert_allclose(runtime.load(tmp_path / "net.plan")(x.numpy()), fast(x).numpy(), rtol=1e-6)


def test_vision_transformers():
    assert agree(pruned(create_model("vit-tiny-cpu", num_classes=10)), (3, 32, 32)).islands == ()
    timm = pytest.importorskip("timm")
    model = timm.create_model("deit_tiny_patch16_224", img_size=64, depth=2)
    assert agree(pruned(model), (3, 64, 64), (1, 2)).islands == ()


class Written(Encoder):
    """Attention by products and a softmax: the scores scaled by a division, or the query by a product before."""

    def __init__(self, query_first: bool, axis: int = -1) -> None:
        super().__init__()
        self.query_first, self.axis, self.drop = query_first, axis, nn.Dropout(0.3)

    def forward(self, x):
        y = self.norm(self.patch(x).flatten(2).transpose(1, 2))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(y), *self.kv(y).chunk(2, -1)))
        scores = (q * 0.3) @ k.transpose(-2, -1) if self.query_first else q @ k.transpose(-2, -1) / 2.5
        y = self.drop(scores.softmax(self.axis)) @ v
        return self.head(self.out(y.transpose(1, 2).flatten(2))[:, 0])


class Padded(nn.Module):
    """Channels of zeros around (ResNet's parameter-free shortcut), a border of ones, and a border cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(11, 4)

    def forward(self, x):
        y = F.pad(F.relu(self.conv(x))[:, :, ::2, ::2], (0, 0, 0, 0, 2, 3))
        return self.head(F.pad(F.pad(y, (1, 2, 0, 1), value=1.0), (-1, 0, 0, -2)).mean((2, 3)))


def test_padding():
    torch.manual_seed(0)
    assert agree(pruned(Padded(), 0.6), (3, 17, 19)).islands == ()
    assert agree(pruned(create_model("cifar-resnet20-a", num_classes=10)), (3, 32, 32)).islands == ()


@pytest.mark.parametrize("query_first", [True, False])
def test_attention_that_is_written_out(query_first):
    torch.manual_seed(0)
    assert agree(pruned(Written(query_first), 0.6), (3, 16, 16)).islands == ()


def test_a_softmax_over_the_queries_is_not_attention():
    torch.manual_seed(0)
    fast = agree(pruned(Written(False, axis=-2), 0.6), (3, 16, 16))
    assert fast.islands == ()
    assert [node.op for node in fast.program.natives[0].engine.graph.nodes if node.op in ("product", "attention")] == ["product", "product"]


def test_a_dropout_that_is_forced_on_is_not_taken_out():
    class Forced(Written):
        def forward(self, x):
            self.drop.train()
            return super().forward(x)

    torch.manual_seed(0)
    fast = rp.compile(Forced(False).eval(), torch.zeros(1, 3, 16, 16), tune=False)
    assert "aten.dropout.default" in fast.islands


def test_mobilenet_runs_without_islands():
    models = pytest.importorskip("torchvision.models")
    assert agree(pruned(models.mobilenet_v3_small(), 0.5), (3, 64, 64), (1, 8)).islands == ()


def test_tuned_choices_are_remembered_and_explained(own_cache):
    layers = [nn.Conv2d(a, b, 3, stride, 1) for a, b, stride in ((3, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1))]
    model = pruned(nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU()))), 0.1)
    fast = agree(model, (3, 32, 32), (1,), tune=True)
    written = list(own_cache.rglob("*.json"))
    assert written
    before = written[0].stat().st_mtime_ns
    again = agree(model, (3, 32, 32), (1,), tune=True)
    assert written[0].stat().st_mtime_ns == before
    assert [line.split()[1:4] for line in again.plan().splitlines()[:5]] == [
        line.split()[1:4] for line in fast.plan().splitlines()[:5]
    ]
    whole = written[0].read_text()
    for damaged in ("{", re.sub(r'"height": \d+', '"height": "7"', whole), re.sub(r'"width": \d+', '"width": -3', whole)):
        written[0].write_text(damaged)  # measured anew, or made harmless
        agree(model, (3, 32, 32), (1,), tune=True)
    assert "sparse" in fast.plan()
    assert "MB" in str(fast.report)


def test_untuned_is_deterministic():
    model = pruned(create_model("cifar-resnet20", num_classes=10), 0.3)
    x = torch.randn(2, 3, 32, 32)
    plans = [rp.compile(model, x, threads=2, tune=False) for _ in range(2)]
    assert torch.equal(plans[0](x), plans[1](x))
    kernels = [[line[29:55] for line in p.plan(1).splitlines()] for p in plans]
    assert kernels[0] == kernels[1]


def test_an_unknown_operator_is_an_island(tmp_path):
    fast = agree(pruned(Unknown(), 0.7), (3, 9, 9))
    assert fast.islands == ("aten.cumsum.default",)
    assert "torch" in fast.plan()
    with pytest.raises(ValueError, match=r"that torch runs here: aten\.cumsum\.default; compile"):
        fast.save(tmp_path / "net.plan")
    assert not list(tmp_path.iterdir())


def test_wrong_inputs_are_one_sentence():
    model = pruned(Unknown(), 0.7)
    with pytest.raises(ValueError, match=r"model\.eval"):
        rp.compile(Unknown(), torch.zeros(1, 3, 9, 9))
    with pytest.raises(ValueError, match=r"Unknown does not run on the example: Input type \(double\)"):
        rp.compile(model, torch.zeros(1, 3, 9, 9).double())
    fast = rp.compile(model, torch.zeros(1, 3, 9, 9), tune=False)
    with pytest.raises(ValueError, match="no images"):
        fast(torch.zeros(0, 3, 9, 9))
    x = torch.zeros(1, 3, 9, 9)
    for threads in (0, -1, 2.5, "2", True):
        with pytest.raises(ValueError, match=f"threads={threads!r} must be a whole number"):
            rp.compile(model, x, threads=threads)
    cores = default_threads()
    for threads in (cores + 1, 999, 5000):  # they would wait for one another in loops: it hung
        with pytest.raises(ValueError, match=f"threads={threads} is more than the {cores} cores this process may use"):
            rp.compile(model, x, threads=threads)
    for odd in (object(), x.numpy()):
        with pytest.raises(ValueError, match=f"takes tensors, plain values, .* not a {type(odd).__name__}: convert"):
            rp.compile(model, odd)
        with pytest.raises(ValueError, match=f"takes tensors, plain values, .* not a {type(odd).__name__}: convert"):
            fast(odd)
    with pytest.raises(ValueError, match="needs an input tensor"):
        rp.compile(model, None)
    with pytest.raises(ValueError, match="sparse_coo on cpu: convert it"):
        fast(x.to_sparse())
    with pytest.raises(ValueError, match=r"shape \(0, 3, 9, 9\) has no images: give a batch of one or more"):
        rp.compile(model, x[:0])
    with pytest.raises(ValueError, match="not a function: put it into one"):
        rp.compile(F.relu, x)
    for inputs, words in (((), "missing a required argument: 'x'"), ((x, x), "too many positional arguments")):
        with pytest.raises(ValueError, match=f"Unknown does not take these arguments: {words}"):
            fast(*inputs)


def test_nan_comes_through_a_max_pool():
    fast = rp.compile(nn.Sequential(nn.MaxPool2d(3, 2, 1)).eval(), torch.zeros(1, 2, 9, 9), tune=False)
    x = torch.randn(8, 2, 9, 9)
    x[:, 0, ::4, ::4] = torch.nan
    for n in (1, 8):
        assert torch.equal(fast(x[:n]).isnan(), F.max_pool2d(x[:n], 3, 2, 1).isnan())


def test_several_engines_and_callers_at_once():
    nets = [pruned(create_model("cifar-resnet20", num_classes=10), 0.2, seed) for seed in range(2)]
    x = torch.randn(9, 3, 32, 32)
    fasts = [rp.compile(net, x, threads=t, tune=False) for net, t in zip(nets, (1, 2))]
    with torch.no_grad():
        want = [net(x) for net in nets]
    wrong: list[str] = []

    def work(which: int, size: int) -> None:
        for _ in range(15):
            if not torch.allclose(fasts[which](x[:size]), want[which][:size], rtol=1e-3, atol=1e-3):
                wrong.append(f"{which} {size}")

    threads = [threading.Thread(target=work, args=(i % 2, (1, 9)[i // 2 % 2])) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_can_run():
    x = torch.randn(1, 3, 32, 32)
    fast = rp.compile(create_model("cifar-resnet20", num_classes=10).eval(), x, threads=2, tune=False)
    want = fast(x)
    child = os.fork()
    if not child:
        signal.alarm(60)  # the threads that the engine started are not in the child, which must not wait for them
        os._exit(0 if torch.equal(fast(x), want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_weights_take_little_memory():
    model = pruned(create_model("cifar-vgg19", num_classes=10), 0.02)
    fast = rp.compile(model, torch.zeros(1, 3, 32, 32), tune=False)
    assert fast.weight_bytes() <= 0.05 * 4 * sum(p.numel() for p in model.parameters())
