"""Products of computed tensors and attention with masks, biases and windows, against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from _agree import agree
from torch import nn

import rankprune as rp


class Attention(nn.Module):
    """Over the pixels of an image: `attend` gets q, k, v [batch, heads, tokens, dim]."""

    def __init__(self, attend, heads: int = 3, dim: int = 5) -> None:
        super().__init__()
        self.attend, self.heads = attend, heads
        self.qkv, self.out = nn.Linear(4, 3 * heads * dim), nn.Linear(heads * dim, 6)

    def forward(self, x):
        x = self.qkv(x.flatten(2).transpose(1, 2))
        q, k, v = x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


T = 5 * 7
torch.manual_seed(3)
BIAS, MASK, ROWS = torch.randn(3, T, T), torch.rand(T, T) < 0.7, torch.randn(1, 1, 1, T)
MASK[:, 0] = True
SCALE, QUERY = torch.rand(3, 1, 1) + 0.5, torch.randn(1, 3, 2, 5)


def written(q, k, v, scale=0.3, bias=None):
    scores = q @ k.transpose(-2, -1) * scale
    return (scores if bias is None else scores + bias).softmax(-1) @ v


def cosine(q, k, v):
    q, k = (t / t.square().sum(-1, keepdim=True).sqrt() for t in (q, k))
    return written(q, k, v, SCALE, BIAS)


@pytest.mark.parametrize(
    "attend",
    [
        F.scaled_dot_product_attention,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, BIAS),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, MASK),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, ROWS),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7),
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :, 3:20], v[:, :, 3:20]),
        written,
        lambda q, k, v: written(q, k, v, bias=BIAS),
        lambda q, k, v: written(q, k, v, bias=BIAS + ROWS),
        lambda q, k, v: written(q, k, v, bias=q.mean((1, 3))[:, None, None]),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q.mean((1, 3))[:, None, None]),
        lambda q, k, v: written(q, k, v, bias=q[..., :1] - k[..., 0].unsqueeze(-2)),
        lambda q, k, v: ((q @ k.transpose(-2, -1) + BIAS) * 0.5).softmax(-1) @ v,
        lambda q, k, v: torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v),
    ],
)
def test_attention(attend):
    module = Attention(attend)
    agree(module, 4, 5, 7, batches=(1, 3, 9), scale=1.0)
    fast = rp.compile(module, torch.randn(1, 4, 5, 7), tune=False)
    assert [node.op for node in fast.program.natives[0].engine.graph.nodes if node.op in ("product", "softmax", "attention")] == ["attention"]


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, k, v: (q.transpose(-2, -1) @ k * 0.2).softmax(-1).matmul(v.transpose(-2, -1)).transpose(-2, -1),
        lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-2) @ v,
        lambda q, k, v: (q @ k.transpose(-2, -1)).relu() @ v,
        lambda q, k, v: q @ (k.transpose(-2, -1) @ v),
        cosine,
        lambda q, k, v: torch.einsum("bhid,bhjd->bijh", q, k).softmax(2).mean(3).unsqueeze(1) @ v,
    ],
)
def test_products(attend):
    agree(Attention(attend), 4, 5, 7, batches=(1, 3, 9), scale=1.0)


class Windows(nn.Module):
    """Shifted windows of an image, with a bias for each head and a mask for each window."""

    def __init__(self, size: int, shift: int, heads: int = 2, dim: int = 4) -> None:
        super().__init__()
        self.size, self.shift, self.heads = size, shift, heads
        self.qkv, self.out = nn.Linear(8, 3 * heads * dim), nn.Linear(heads * dim, 8)
        self.bias = nn.Parameter(torch.randn(1, heads, size**2, size**2))
        self.register_buffer("mask", torch.where(torch.rand(6, size**2, size**2) < 0.3, -100.0, 0.0))

    def forward(self, x):
        b, c, h, w = x.shape
        s, y = self.size, x.permute(0, 2, 3, 1)
        y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = y.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        q, k, v = self.qkv(y).reshape(y.shape[0], s * s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) + self.bias
        if self.shift:
            scores = scores.view(b, 6, self.heads, s * s, s * s) + self.mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, self.heads, s * s, s * s)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(y.shape[0], s * s, -1)
        y = self.out(y).view(b, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(y, (self.shift, self.shift), (1, 2)).permute(0, 3, 1, 2) + x


@pytest.mark.parametrize(("size", "shift"), [(3, 0), (5, 2), (8, 3)])
def test_windows(size, shift):
    torch.manual_seed(0)
    module = Windows(size, shift)
    agree(module, 8, 2 * size, 3 * size, batches=(1, 2, 9), scale=1.0)
    fast = rp.compile(module, torch.randn(1, 8, 2 * size, 3 * size), tune=False)
    assert [node.op for node in fast.program.natives[0].engine.graph.nodes].count("attention") == 1


def test_a_constant_query():
    """The pooling head of SigLIP: a learned query, expanded over the batch, asks the tokens."""

    class Pool(Attention):
        def __init__(self):
            super().__init__(lambda q, k, v: F.scaled_dot_product_attention(QUERY.expand(q.shape[0], -1, -1, -1), k, v))

    agree(Pool(), 4, 5, 7, batches=(1, 3, 9), scale=1.0)


@pytest.mark.parametrize("version", ["", "V2"])
def test_torchvision_s_shifted_windows(version):
    swin = pytest.importorskip("torchvision.models.swin_transformer")
    torch.manual_seed(0)
    module = swin.SwinTransformer(
        patch_size=[4, 4], embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=[4, 4], stochastic_depth_prob=0.0,
        num_classes=7, block=getattr(swin, f"SwinTransformerBlock{version}"),
        downsample_layer=getattr(swin, f"PatchMerging{version}"),
    )  # fmt: skip
    agree(module, 3, 32, 48, batches=(1, 3), threads=(2,), scale=1.0)


class Padded(nn.Module):
    """Causal attention over token embeddings with a padding mask: a boolean mask that is computed from the inputs."""

    def __init__(self, safe: bool) -> None:
        super().__init__()
        self.embedding, self.qkv, self.safe = nn.Embedding(50, 12), nn.Linear(12, 36), safe

    def forward(self, ids, keep):
        tokens = ids.shape[1]
        q, k, v = self.qkv(self.embedding(ids)).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)  # [N, heads, T, dim]
        allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril() & keep.bool()[:, None, None]  # [N, 1, T, T]
        if self.safe:
            return F.scaled_dot_product_attention(q, k, v, allowed)
        bias = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
        return ((q @ k.transpose(-2, -1)) * 6**-0.5 + bias).softmax(-1) @ v


@pytest.mark.parametrize("safe", [True, False])
def test_tokens_that_may_look_at_nothing_are_what_torch_has_for_them(safe):
    """Padding in front leaves no key to the first tokens: 0 from torch's attention, NaN from a softmax written out."""
    torch.manual_seed(0)
    module, ids, keep = Padded(safe).eval(), torch.randint(0, 50, (3, 11)), torch.ones(3, 11, dtype=torch.int64)
    keep[1, :4], keep[2, 7:] = 0, 0
    fast = rp.compile(module, (ids[:1], keep[:1]), threads=1, tune=False)
    assert not any("attention" in operator or "matmul" in operator for operator in fast.islands)
    want, got = module(ids, keep), fast(ids, keep)
    assert bool((want[1] == 0).any() if safe else want[1].isnan().any())
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
