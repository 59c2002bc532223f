"""One linear layer with given weights and gradients, so that a step can be worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import rankprune as rp


class Line:
    """A 1 x n linear layer, plain SGD and a method on it; the mask may be set by hand."""

    def __init__(self, values: list[float], method: Any, sparsity: float, steps: int, lr: float = 0.1, **options: Any) -> None:
        self.model = nn.Linear(len(values), 1, bias=False)
        self.set(values)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, **options)
        self.sp = rp.attach(self.model, self.optimizer, method, sparsity=sparsity, total_steps=steps, seed=3)
        self.group = self.sp.groups[0]
        self.layer = self.group.layers[0]

    def set(self, values: list[float]) -> None:
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([values]))

    def activate(self, values: list[float], active: list[int]) -> None:
        self.sp.set_masks({"weight": torch.tensor([[i in active for i in range(len(values))]])})
        self.set(values)

    def step(self, grad: list[float] | float = 0.0) -> None:
        grads = torch.tensor([grad]) if isinstance(grad, list) else torch.full_like(self.model.weight, grad)
        self.model.weight.grad = grads.detach().clone()
        self.optimizer.step()

    @property
    def weight(self) -> torch.Tensor:
        return self.model.weight.detach()[0]

    @property
    def mask(self) -> list[int]:
        return [i for i, on in enumerate(self.sp.masks["weight"][0].tolist()) if on]
