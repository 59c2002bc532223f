"""Kronecker factors of the Fisher of each weight: F ≈ G ⊗ A (Martens & Grosse 2015; Grosse & Martens 2016 for conv)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, unfold

from rankprune.core.method import Group, PrunableLayer

from .probe import average_over_ranks, batches, gradients, probing

_ENTRIES = 1 << 24  # of a temporary of unfolded patches: 64 MB


@dataclass
class Factors:
    """Sums over the data, for a weight of m outputs and n inputs (with the positions of the kernel).

    Attributes:
        a: Second moments of the inputs, (n, n).
        g: Second moments of the gradients of the outputs, (m, m).
        trace: The trace of the Fisher: squared norms of each sample's gradient of the weight.
        samples: How many samples.
        from_inputs: Whether inputs and outputs were seen; otherwise the gradient of the weight is used.
    """

    a: Tensor
    g: Tensor
    trace: Tensor
    samples: int = 0
    from_inputs: bool = False

    def add_inputs(self, inputs: Tensor, output_grads: Tensor) -> None:
        """Add the inputs of a layer, and the gradients of the outputs they gave.

        Args:
            inputs: (samples, positions, n).
            output_grads: (samples, positions, m).
        """
        rows, grads = inputs.flatten(0, 1), output_grads.flatten(0, 1)
        self.a.addmm_(rows.mT, rows)
        self.g.addmm_(grads.mT, grads)
        self.trace += (output_grads.mT @ inputs).square().sum()
        self.from_inputs = True

    def add_weight_gradient(self, gradient: Tensor) -> None:
        """Add a batch's gradient J of the weight, if inputs were not seen: with F = G ⊗ A, E[JJᵀ] ∝ G and E[JᵀJ] ∝ A.

        Labels drawn from the model make gradients of mean zero (given the inputs), so those of different samples are
        uncorrelated, and the square of their sum has the expectation of the sum of their squares.

        Args:
            gradient: The batch's gradient of the weight, (m, n).
        """
        if not self.from_inputs:
            self.a.addmm_(gradient.mT, gradient)
            self.g.addmm_(gradient, gradient.mT)
            self.trace += gradient.square().sum()

    def finish(self) -> tuple[Tensor, Tensor]:
        """A and G, scaled such that tr G · tr A = tr F, the mean squared norm of a sample's gradient.

        K-FAC assumes that the positions of a convolution (the tokens of a sequence) are uncorrelated. Before an average
        pool they are nearly equal, and without the scale the curvature would be too small by their number.
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
        observed = [layer for layer in group.layers if _can_observe(layer)]
        hooks = [layer.module.register_forward_hook(_observer(sums[layer])) for layer in observed]
        try:
            for inputs, _ in batches(group, count):
                outputs = model(inputs)
                if not isinstance(outputs, Tensor) or outputs.ndim < 2:
                    raise ValueError("mlprune draws labels from the model: its output must be samples x classes")
                drawn = torch.distributions.Categorical(logits=outputs.detach().movedim(1, -1)).sample()
                grads = gradients(cross_entropy(outputs, drawn, reduction="sum"), group)  # runs the hooks, too
                for layer, grad in zip(group.layers, grads):
                    sums[layer].samples += len(outputs)
                    sums[layer].add_weight_gradient(grad.flatten(1))
        finally:
            for hook in hooks:
                hook.remove()
    average_over_ranks(group, [t for factors in sums.values() for t in (factors.a, factors.g, factors.trace)])
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


def _can_observe(layer: PrunableLayer) -> bool:
    """Whether the inputs of a layer can be unfolded into rows that its weight multiplies."""
    module: Any = layer.module
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear)


def _observer(sums: Factors) -> Callable[..., None]:
    """A forward hook that adds, during the backward pass, the inputs and the gradients of the outputs."""

    def forward(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs = args[0].detach()

        def backward(gradient: Tensor) -> None:
            # (samples, positions, m)
            grads = gradient.flatten(2).mT if not isinstance(module, nn.Linear) else _positions(gradient)
            most = sums.a.shape[0] * max(grads.shape[1], grads.shape[2])  # entries of a sample's patches, or gradient
            size = max(1, _ENTRIES // most)
            for inputs_part, grads_part in zip(inputs.split(size), grads.split(size)):
                sums.add_inputs(_patches(module, inputs_part), grads_part)

        output.register_hook(backward)  # on this output, whatever in-place operations follow

    return forward


def _positions(rows: Tensor) -> Tensor:
    """Inputs or outputs of a linear layer as (samples, positions, n)."""
    return rows.unsqueeze(1) if rows.ndim == 2 else rows.flatten(1, -2)


def _patches(module: Any, inputs: Tensor) -> Tensor:
    """The inputs of each output position of a layer, (samples, positions, n)."""
    if isinstance(module, nn.Linear):
        return _positions(inputs)
    if inputs.ndim == 3:  # Conv1d, as a convolution over an image with one row
        inputs = inputs.unsqueeze(2)
    pairs = ((1, *p) if len(p) == 1 else p for p in (module.kernel_size, module.dilation, module.stride))
    kernel, dilation, stride = pairs
    padding = (0, *module.padding) if len(module.padding) == 1 else module.padding
    return unfold(inputs, kernel, dilation, padding, stride).mT
