"""A dense teacher helps a sparse student: the same pruning with and without `losses.distill`.

Trains the teacher, then two students at 98 % from the same start. On so little data the order of the two may be either;
what is shown is how it is done. Run it:

    python examples/distillation.py
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import rankprune as rp

EPOCHS = 4


def accuracy(model: nn.Module, data: rp.data.DataModule) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean().item() for x, y in data.test()]
    model.train()
    return sum(right) / len(right)


def train(model: nn.Module, data: rp.data.DataModule, sparsity: float | None, teacher: nn.Module | None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * data.batches_per_epoch
    sp = rp.attach(model, optimizer, "gmp", sparsity=sparsity, total_steps=steps, every=10) if sparsity else None
    for epoch in range(EPOCHS):
        for x, y in data.train(epoch):
            if teacher is None:
                loss = nn.functional.cross_entropy(model(x), y)
            else:
                with torch.no_grad():
                    taught = teacher(x)
                loss = rp.losses.distill(model(x), taught, y, temperature=4.0, alpha=0.5)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if sp is not None:
        sp.finalize()


def main() -> None:
    torch.manual_seed(0)
    data = rp.data.load_data("fashion", image_size=14, batch_size=64, limit_train=3000, limit_test=1000)
    teacher = rp.models.create_model("vgg-small", num_classes=10, in_channels=1)
    train(teacher, data, None, None)
    print(f"teacher, dense:             {accuracy(teacher, data):.1%}")
    teacher.eval()
    for name, guide in (("student at 98 %, alone:    ", None), ("student at 98 %, distilled:", teacher)):
        student = copy.deepcopy(teacher)
        train(student, data, 0.98, guide)
        print(f"{name} {accuracy(student, data):.1%}")


if __name__ == "__main__":
    main()
