"""Small networks and loops the tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def cnn(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).to(dtype)


class TinyViT(nn.Module):
    """A patch embedding, one encoder layer with fused attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, stride=4)
        self.block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def vit(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return TinyViT().to(dtype)


class Conv1D(nn.Module):
    """As Hugging Face has it: a linear layer whose weight is (inputs, outputs). It is known by its name and module."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.2)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


Conv1D.__module__ = "transformers.pytorch_utils"


class TinyRecurrent(nn.Module):
    """Rows of the picture as a sequence: an LSTM in both directions, a GRU, a cell, a transposed linear layer, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(24, 8, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(16, 12, batch_first=True)
        self.cell = nn.RNNCell(12, 12)
        self.mix = Conv1D(16, 12)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows, _ = self.lstm(x.transpose(1, 2).flatten(2))
        rows, _ = self.gru(rows)
        return self.head(torch.relu(self.mix(self.cell(rows[:, -1], rows.mean(1)))))


def recurrent(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return TinyRecurrent().to(dtype)


NETS: dict[str, Callable[..., nn.Module]] = {"cnn": cnn, "vit": vit, "recurrent": recurrent}


def batch(step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The batch of a step, the same wherever and whenever it is asked for. The label depends on the input."""
    x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(step), dtype=dtype)
    return x, (x.mean((1, 2, 3)).sign().long() + 1) * 3


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, each: Any = None) -> None:
    """Plain steps first..last (from 1)."""
    dtype = next(model.parameters()).dtype
    for step in range(first, last + 1):
        x, y = batch(step, dtype)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if each:
            each(step)


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, **options})


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, **options})


def train_scaled(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, enabled: bool) -> None:
    """Under a GradScaler, whose scale a fused optimizer takes off by itself."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=enabled)
    for step in range(1, steps + 1):
        x, y = batch(step)
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
