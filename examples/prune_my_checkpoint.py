"""Prune a checkpoint of your own in one shot, re-estimate BatchNorm, train on with the zeros fixed, save a small file.

Without an argument a dense network is trained first and saved as `my.pth`, so that there is one to prune. Run it:

    python examples/prune_my_checkpoint.py [vgg-small-weights.pth]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import rankprune as rp


def accuracy(model: nn.Module, data: rp.data.DataModule) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean().item() for x, y in data.test()]
    model.train()
    return sum(right) / len(right)


def train(model: nn.Module, data: rp.data.DataModule, epochs: int, lr: float, keep_zeros: bool) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    if keep_zeros:
        rp.attach(model, optimizer, "static", total_steps=epochs * data.batches_per_epoch)
    for epoch in range(epochs):
        for x, y in data.train(epoch):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    data = rp.data.load_data("fashion", image_size=14, batch_size=64, limit_train=3000, limit_test=1000)
    model = rp.models.create_model("vgg-small", num_classes=10, in_channels=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "my.pth"
        if not file.exists():
            train(model, data, 4, 0.05, keep_zeros=False)
            torch.save(model.state_dict(), file)

        model.load_state_dict(torch.load(file, weights_only=True))
        print(rp.rank.profile(model, delta=0.1))  # which layers have rank to spare
        print(f"dense:                 {accuracy(model, data):.1%}")
        report = rp.prune(model, "magnitude", sparsity=0.95)
        print(f"pruned to {report.sparsity:.2%}:      {accuracy(model, data):.1%}")
        rp.recalibrate(model, data.train(0))
        print(f"BatchNorm re-estimated: {accuracy(model, data):.1%}")
        train(model, data, 2, 0.01, keep_zeros=True)
        print(f"two epochs more:       {accuracy(model, data):.1%}")
        small = Path(folder) / "my.sparse.safetensors"
        rp.save(model, small)
        print(f"{file.stat().st_size:,} bytes before, {small.stat().st_size:,} after")


if __name__ == "__main__":
    main()
