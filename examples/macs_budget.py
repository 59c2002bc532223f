"""A budget in multiply-accumulates (MACs) instead of weights.

A weight of an early convolution is used at many positions and costs more than one of the last layers. Prunes the same
network to 30 % of its weights and to 30 % of its MACs, and prints the weights and MACs that each leaves. Run it:

    python examples/macs_budget.py
"""

from __future__ import annotations

import torch
from torch import nn

import rankprune as rp

EPOCHS = 3


def accuracy(model: nn.Module, data: rp.data.DataModule) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean().item() for x, y in data.test()]
    model.train()
    return sum(right) / len(right)


def main() -> None:
    data = rp.data.load_data("fashion", image_size=14, batch_size=64, limit_train=3000, limit_test=1000)
    example = torch.zeros(1, 1, 14, 14)
    for budget in ("weights", "macs"):
        torch.manual_seed(0)
        model = rp.models.create_model("vgg-small", num_classes=10, in_channels=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        steps = EPOCHS * data.batches_per_epoch
        sp = rp.attach(
            model, optimizer, "gmp", sparsity=0.7, total_steps=steps, every=10, budget=budget, example=example
        )
        for epoch in range(EPOCHS):
            for x, y in data.train(epoch):
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        report, macs = sp.finalize(), rp.flops.count(model, example)
        print(
            f"budget in {budget}: {report.kept / report.total:.2%} of the weights, {macs.ratio:.2%} of the MACs, "
            f"accuracy {accuracy(model, data):.1%}"
        )


if __name__ == "__main__":
    main()
