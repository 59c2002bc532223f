"""Networks as users write them, small: each a function that returns the module and an example for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 32, 3, padding=1)
        self.bottom = nn.Conv2d(32, 64, 3, padding=1)
        self.up = nn.ConvTranspose2d(64, 32, 2, 2)
        self.merge = nn.Conv2d(64, 32, 3, padding=1)
        self.head = nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        deep = F.relu(self.bottom(F.max_pool2d(skip, 2)))
        return self.head(F.relu(self.merge(torch.cat([skip, self.up(deep)], 1))))


class _Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.rnn = getattr(nn, kind)(64, 128, batch_first=True, bidirectional=True)
        self.head = nn.Linear(256, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(ids))[0][:, -1])


class _TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.convs = nn.ModuleList(nn.Conv1d(64, 100, k) for k in (3, 4, 5))
        self.head = nn.Linear(300, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).transpose(1, 2)  # [N, C, T]
        return self.head(torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1))


class _CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).split(c, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [N, heads, T, C / heads]
        x = x + self.out(attended.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.norm2(x))


class _NanoGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(1000, 192), nn.Embedding(256, 192)
        self.blocks = nn.Sequential(*(_CausalBlock(192, 6) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 1000, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class _SuperResolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Conv2d(3, 56, 5, padding=2), nn.Conv2d(56, 56, 3, padding=1)
        self.act1, self.act2 = nn.PReLU(56), nn.PReLU(56)
        self.last = nn.Conv2d(56, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act2(self.middle(self.act1(self.first(x))))
        return F.pixel_shuffle(self.last(x), 2) + 0.0


class _StyleTransfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 9, padding=4), nn.Conv2d(32, 64, 3, 2, 1)
        self.norm1, self.norm2 = nn.InstanceNorm2d(32, affine=True), nn.InstanceNorm2d(64, affine=True)
        self.last = nn.Conv2d(64, 3, 9, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm2(self.second(F.relu(self.norm1(self.first(x))))))
        return torch.sigmoid(self.last(F.interpolate(x, scale_factor=2.0, mode="nearest")))


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(192, 6, 768, batch_first=True, norm_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Flatten(), nn.LazyLinear(10))


def _mlp(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), activation, nn.Linear(512, 512), activation, nn.Linear(512, 10))


def _audio() -> nn.Module:
    stages: list[nn.Module] = []
    for inputs, outputs in ((1, 64), (64, 128), (128, 256)):
        stages += [nn.Conv1d(inputs, outputs, 9, 4, 4), nn.BatchNorm1d(outputs), nn.LeakyReLU(0.1)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(256, 35))


def _video() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(3, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(32, 64, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def _group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv2d(64, 128, 3, 2, 1),
        nn.GroupNorm(8, 128), nn.Mish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def _ids() -> Tensor:
    return torch.randint(3, 900, (1, 40))


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "mlp_elu": lambda: (_mlp(nn.ELU()), torch.randn(1, 784)),
    "mlp_gelu": lambda: (_mlp(nn.GELU()), torch.randn(1, 784)),
    "audio_1d": lambda: (_audio(), torch.randn(1, 1, 4000)),
    "unet": lambda: (_UNet(), torch.randn(1, 3, 64, 64)),
    "lstm": lambda: (_Recurrent("LSTM"), _ids()),
    "gru": lambda: (_Recurrent("GRU"), _ids()),
    "text_cnn": lambda: (_TextCnn(), _ids()),
    "nano_gpt": lambda: (_NanoGpt(), _ids()),
    "super_resolution": lambda: (_SuperResolution(), torch.randn(1, 3, 48, 48)),
    "style_transfer": lambda: (_StyleTransfer(), torch.randn(1, 3, 64, 64)),
    "transformer_encoder": lambda: (_transformer(), torch.randn(1, 50, 192)),
    "video_3d": lambda: (_video(), torch.randn(1, 3, 8, 32, 32)),
    "group_norm": lambda: (_group_norm(), torch.randn(1, 3, 32, 32)),
}
