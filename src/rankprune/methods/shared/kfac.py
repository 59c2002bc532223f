"""Kronecker factors of the Fisher of each weight: F ≈ G ⊗ A (Martens & Grosse 2015; Grosse & Martens 2016 for conv)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, unfold

from rankprune.core.method import Group, PrunableLayer

from .probe import agree, batches, gradients, probing

_ENTRIES = 1 << 24  # of a temporary of unfolded patches


@dataclass
class Factors:
    """Sums over the data. `a` and `g` are of inputs and of gradients of outputs, or of the weight's gradient itself."""

    a: Tensor
    g: Tensor
    trace: Tensor  # of the Fisher: squared norms of the samples' gradients of the weight
    samples: int = 0
    seen: bool = False  # whether the layer showed its inputs; else the weight's gradient stands in

    def with_inputs(self, inputs: Tensor, outputs: Tensor) -> None:
        """Add input rows (samples x positions x n) and the gradients of the outputs they gave.

        Args:
            inputs: Inputs, (samples, positions, n).
            outputs: Gradients of the outputs, (samples, positions, m).
        """
        rows, grads = inputs.flatten(0, 1), outputs.flatten(0, 1)
        self.a.addmm_(rows.mT, rows)
        self.g.addmm_(grads.mT, grads)
        self.trace += (outputs.mT @ inputs).square().sum()
        self.seen = True

    def without_inputs(self, gradient: Tensor) -> None:
        """Add what is missing, from the batch's gradient J of the weight: with F = G ⊗ A, E[JJᵀ] ∝ G, E[JᵀJ] ∝ A.

        Labels drawn from the model make gradients of mean zero (given the inputs), so those of different samples are
        uncorrelated and squares of their sum stand for sums of their squares.

        Args:
            gradient: The batch's gradient of the weight.
        """
        if not self.seen:
            self.a.addmm_(gradient.mT, gradient)
            self.g.addmm_(gradient, gradient.mT)
            self.trace += gradient.square().sum()

    def finish(self) -> tuple[Tensor, Tensor]:
        """A and G up to a scale each, then the scale: tr G · tr A = tr F, the mean squared norm of a sample's gradient.

        K-FAC takes the positions of a convolution (the tokens of a sequence) as uncorrelated. Before an average pool
        they are all but equal, and the layer's whole curvature would come out too small by their number.
        """
        a, g = self.a.double(), self.g.double()
        return a / a.trace().clamp_min(1e-300), g / g.trace().clamp_min(1e-300) * self.trace / self.samples


def kronecker_factors(group: Group, count: int) -> list[tuple[Tensor, Tensor]]:
    """A and G of each layer, from `count` batches with labels drawn from the model (the true Fisher), in eval mode.

    Args:
        group: The layers that the method works on.
        count: How many batches.
    """
    sums = {layer: _empty(layer) for layer in group.layers}
    with probing(group, training=False) as model:
        hooks = [s.module.register_forward_hook(_watch(sums[s])) for s in group.layers if _shows_inputs(s)]
        try:
            for inputs, _ in batches(group, count):
                outputs = model(inputs)
                if not isinstance(outputs, Tensor) or outputs.ndim < 2:
                    raise ValueError("mlprune draws labels from the model: its output must be samples x classes")
                drawn = torch.distributions.Categorical(logits=outputs.detach().movedim(1, -1)).sample()
                found = gradients(cross_entropy(outputs, drawn, reduction="sum"), group)  # the hooks gather on the way
                for layer, gradient in zip(group.layers, found):
                    sums[layer].samples += len(outputs)
                    sums[layer].without_inputs(gradient.flatten(1))
        finally:
            for hook in hooks:
                hook.remove()
    agree(group, [t for factors in sums.values() for t in (factors.a, factors.g, factors.trace)])
    return [factors.finish() for factors in sums.values()]


def damped_inverse(matrix: Tensor, damping: float) -> Tensor:
    """(M + ε I)⁻¹, ε the share `damping` of the mean of M's diagonal.

    Args:
        matrix: A symmetric positive semidefinite matrix M.
        damping: The share of its mean diagonal that is added.
    """
    mean = matrix.diagonal().mean().clamp_min(1e-30)
    damped = matrix + damping * mean * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return torch.cholesky_inverse(torch.linalg.cholesky(damped))


def _empty(layer: PrunableLayer) -> Factors:
    outputs, inputs = layer.shape[0], layer.numel // layer.shape[0]
    zeros = layer.weight.new_zeros
    return Factors(zeros(inputs, inputs), zeros(outputs, outputs), zeros((), dtype=torch.float64))


def _shows_inputs(layer: PrunableLayer) -> bool:
    module: Any = layer.module
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear)


def _watch(sums: Factors) -> Callable[..., None]:
    """A forward hook that adds the layer's inputs, and with the backward pass its outputs' gradients."""

    def forward(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs = args[0].detach()

        def backward(gradient: Tensor) -> None:
            # samples x positions x outputs
            grads = gradient.flatten(2).mT if not isinstance(module, nn.Linear) else _positions(gradient)
            most = sums.a.shape[0] * max(grads.shape[1], grads.shape[2])  # entries of a sample's patches, or gradient
            size = max(1, _ENTRIES // most)
            for some, part in zip(inputs.split(size), grads.split(size)):
                sums.with_inputs(_patches(module, some), part)

        output.register_hook(backward)  # called before any change in place that follows

    return forward


def _positions(rows: Tensor) -> Tensor:
    """What a linear layer sees or gives, as samples x positions x n."""
    return rows.unsqueeze(1) if rows.ndim == 2 else rows.flatten(1, -2)


def _patches(module: Any, inputs: Tensor) -> Tensor:
    """The inputs of each output position of a layer: samples x positions x n."""
    if isinstance(module, nn.Linear):
        return _positions(inputs)
    if inputs.ndim == 3:  # Conv1d, as a convolution over one row of pixels
        inputs = inputs.unsqueeze(2)
    pairs = ((1, *p) if len(p) == 1 else p for p in (module.kernel_size, module.dilation, module.stride))
    kernel, dilation, stride = pairs
    padding = (0, *module.padding) if len(module.padding) == 1 else module.padding
    return unfold(inputs, kernel, dilation, padding, stride).mT
