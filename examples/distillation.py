"""Distillation helps a sparse student: the same pruning to 99 % with and without `losses.distill`, for three seeds.

For each seed a dense teacher is trained, and two students start from it: one learns from the labels alone, the other
from the teacher as well. Everything else is the same. Takes a few minutes on a CPU. Run it:

    python examples/distillation.py
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import rankprune as rp

EPOCHS, SEEDS = 4, 3


def accuracy(model: nn.Module, data: rp.data.DataModule) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean().item() for x, y in data.test()]
    return sum(right) / len(right)


def train(model: nn.Module, data: rp.data.DataModule, sparsity: float | None, teacher: nn.Module | None) -> float:
    """Train for a few epochs, pruning if a sparsity is given; returns the test accuracy."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * data.batches_per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    sp = rp.attach(model, optimizer, "gmp", sparsity=sparsity, total_steps=steps, every=5) if sparsity else None
    for epoch in range(EPOCHS):
        for x, y in data.train(epoch):
            if teacher is None:
                loss = nn.functional.cross_entropy(model(x), y)
            else:
                with torch.no_grad():
                    taught = teacher(x)
                loss = rp.losses.distill(model(x), taught, y, temperature=4.0, alpha=0.9)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 3.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    if sp is not None:
        sp.finalize()
    return accuracy(model, data)


def main() -> None:
    data = rp.data.load_data("fashion", image_size=14, batch_size=64, limit_train=3000, limit_test=2000)
    gains = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        teacher = rp.models.create_model("vgg-small", num_classes=10, in_channels=1)
        dense = train(teacher, data, None, None)
        alone = train(copy.deepcopy(teacher), data, 0.99, None)
        distilled = train(copy.deepcopy(teacher), data, 0.99, teacher.eval())
        gains.append(distilled - alone)
        print(f"seed {seed}: teacher {dense:.1%}, student at 99 % alone {alone:.1%}, distilled {distilled:.1%}")
    print(f"gain by distillation: {100 * sum(gains) / SEEDS:+.1f} points, least {100 * min(gains):+.1f}")


if __name__ == "__main__":
    main()
