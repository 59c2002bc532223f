"""Your own training loop, pruned to 95 % by one added line.

Shows `attach`, `finalize`, the compact file and the latency on the sparse engine. Run it:

    python examples/plain_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import rankprune as rp

EPOCHS = 6


def accuracy(model: nn.Module, data: rp.data.DataModule) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean().item() for x, y in data.test()]
    model.train()
    return sum(right) / len(right)


def main() -> None:
    torch.manual_seed(0)
    data = rp.data.load_data("fashion", image_size=14, batch_size=64, limit_train=4000, limit_test=1000)
    model = rp.models.create_model("vgg-small", num_classes=10, in_channels=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * data.batches_per_epoch

    sp = rp.attach(model, optimizer, "feather", sparsity=0.95, total_steps=steps)  # the added line

    for epoch in range(EPOCHS):
        for x, y in data.train(epoch):
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch + 1}: accuracy {accuracy(model, data):.1%} at sparsity {sp.sparsity:.2%}")

    print(sp.finalize())  # raises unless the target is reached exactly
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.sparse.safetensors"
        rp.save(model, file)
        dense = sum(value.numel() * value.element_size() for value in model.state_dict().values())
        print(f"file: {file.stat().st_size:,} bytes, dense {dense:,}")
    print(rp.compile(model.eval(), torch.zeros(1, 1, 14, 14)).report)  # needs a C++17 compiler the first time


if __name__ == "__main__":
    main()
