"""SynFlow (Tanaka et al. 2020): iterative synaptic flow pruning at initialisation, without data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rankprune.core.method import Group, PrunableLayer, Score, register
from rankprune.core.plan import AtOnce, Plan
from rankprune.core.schedules import check_count
from rankprune.methods.shared.probe import batches, probing, refuse_shards

# Their affine part alone passes a signal on in proportion; batch norm in eval mode does so by itself.
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


@register(
    "synflow", paper="Tanaka et al. 2020, arXiv:2006.05467", family="at initialisation", moves=False, needs=("data",),
)  # fmt: skip
@dataclass(kw_only=True)
class SynFlow(Score):
    """Cut before training, in many small rounds, the weights that carry least of the flow from input to output.

    R = 1ᵀ ∏ |W| 1 is the sum of the outputs for an input of ones in the network with all parameters replaced by their
    absolute values. The scores |w| · ∂R/∂|w| of a layer sum to R whatever its size, so no layer is emptied while others
    are large, provided that scores are taken anew after every few weights: `rounds` rounds along d^(n / rounds). Of the
    data only the shape of the first input is used.

    Args:
        rounds: How many rounds the cut is made in.
    """

    plan: Plan = AtOnce()
    rounds: int = 100

    def __post_init__(self) -> None:
        check_count(self.rounds, "rounds", "rounds")

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.temp["flow"]

    def start(self, group: Group) -> None:
        refuse_shards(group)
        super().start(group)

    def update(self, group: Group) -> None:
        inputs, _ = next(batches(group, 1))
        density = group.final / group.total
        for number in range(1, self.rounds + 1):
            for layer, flow in zip(group.layers, synaptic_flow(group, inputs)):
                layer.temp["flow"] = flow
            last = number == self.rounds
            self.cut_to(group, group.final if last else round(group.total * density ** (number / self.rounds)))


def synaptic_flow(group: Group, inputs: Any) -> list[Tensor]:
    """|w| · ∂R/∂|w| / R of each layer under its mask; in float64 where R leaves the range of float32.

    Args:
        group: The layers that the method works on.
        inputs: Inputs of the model, whose shapes and structure are used.
    """
    narrow = torch.float64 if group.layers[0].weight.dtype == torch.float64 else torch.float32
    total, flows = _flow(group, inputs, narrow)
    if narrow != torch.float64 and not (bool(total.isfinite()) and float(total) > torch.finfo(narrow).tiny):
        total, flows = _flow(group, inputs, torch.float64)
    if not bool(total.isfinite()):
        raise ValueError(f"synflow's R is {float(total)}: the weights are too large for it even in float64")
    scale = total if float(total) > 0.0 else torch.ones_like(total)
    return [(flow / scale).to(narrow) for flow in flows]


def _flow(group: Group, inputs: Any, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    masks = {id(layer.parameter): layer.mask for layer in group.layers}
    with probing(group, training=False) as model, _affine_norms(model):
        tensors = {name: _positive(name, b, dtype) for name, b in model.named_buffers()}
        layers = {}
        for name, parameter in model.named_parameters():
            tensors[name] = _positive(name, parameter, dtype)
            if id(parameter) in masks:
                tensors[name].mul_(masks[id(parameter)]).requires_grad_()
                layers[id(parameter)] = tensors[name]
        total = _sum(functional_call(model, tensors, (_ones(inputs, dtype),)))
        weights = [layers[id(layer.parameter)] for layer in group.layers]
        grads = torch.autograd.grad(total, weights, allow_unused=True, materialize_grads=True)
    return total.detach(), [(weight * grad).detach().abs_() for weight, grad in zip(weights, grads)]


def _positive(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The absolute value; 0 for the running mean of batch norm, which would be subtracted."""
    values = tensor.detach()
    if not values.is_floating_point():
        return values.clone()
    return torch.zeros_like(values, dtype=dtype) if name.endswith("running_mean") else values.to(dtype).abs()


def _ones(inputs: Any, dtype: torch.dtype) -> Any:
    """One sample of the same structure, all ones; indices (token ids, say) stay what they are."""
    if isinstance(inputs, Tensor):
        one = inputs[:1]
        return torch.ones_like(one, dtype=dtype) if one.is_floating_point() else one
    if isinstance(inputs, Mapping):
        return {key: _ones(value, dtype) for key, value in inputs.items()}
    return type(inputs)(_ones(value, dtype) for value in inputs) if isinstance(inputs, (list, tuple)) else inputs


def _sum(outputs: Any) -> Tensor:
    """The sum of all floating-point outputs."""
    if isinstance(outputs, Tensor):
        return outputs.sum() if outputs.is_floating_point() else torch.zeros((), device=outputs.device)
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs
    return torch.stack([_sum(part) for part in parts if isinstance(part, (Tensor, Mapping, list, tuple))]).sum()


@contextmanager
def _affine_norms(model: nn.Module) -> Iterator[None]:
    """Let group, layer and instance norm apply their scale and shift alone."""

    def affine(module: Any, args: tuple[Tensor, ...], _: Tensor) -> Tensor:
        (x,) = args
        layer = isinstance(module, nn.LayerNorm)  # over the last dimensions; the others have channels in the second
        shape = module.normalized_shape if layer else (1, -1, *[1] * (x.dim() - 2))
        scaled = x if module.weight is None else x * module.weight.view(shape)
        return scaled if module.bias is None else scaled + module.bias.view(shape)

    handles = [m.register_forward_hook(affine) for m in model.modules() if isinstance(m, _NORMS)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
