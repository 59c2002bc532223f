"""One prunable weight with its mask, and the exact zeros outside the mask."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankprune.prunable import Kind, standardises

from . import masks
from .select import Chosen
from .shards import Shards, local

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def canonical(name: str) -> str:
    """A parameter's name without the prefixes of wrappers such as DDP and torch.compile.

    Args:
        name: As in `named_parameters()`.
    """
    *path, own = name.split(".")
    return ".".join([*(part for part in path if part not in _WRAPPERS), own])


def seeded(seed: int, step: int, name: str) -> torch.Generator:
    """A generator keyed by (seed, step, name): the same on every rank and after every resume.

    Args:
        seed: The seed of the run.
        step: An optimizer step.
        name: What the numbers are for.
    """
    digest = hashlib.blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


@dataclass(eq=False)
class PrunableLayer:
    """One prunable weight with its mask and state. The parameter is looked up at each use: it may be replaced.

    Attributes:
        name: As in `named_parameters()`.
        module: The module that holds the weight, as its `attribute`.
        kind: "conv", "linear", "attention", "recurrent" or "parameter".
        mask: True where the weight is kept.
        transposed: Whether the second dimension is that of the outputs.
        cost: What one weight costs of the budget: 1, or its MACs.
        shards: How ranks share the weight.
        optimizer: The optimizer that steps it, in its parameter group number `param_group`.
        state: What the method keeps for the layer; saved with the masks.
        seed: Of `random()`.
        step: The optimizer step of the update under way, from 1; 0 at attach.
        temp: Tensors of the method that are dropped when its update is over.
        cut: The score at which the selection over all layers ended in this update, a guess for the layer's own.
        grad_scale: The scale of a GradScaler whose optimizer unscales by itself.
        reserved: Positions that an extra keeps whatever their score.
        seen: Type and device of the weight when mask and state last followed it.
    """

    name: str
    module: nn.Module
    attribute: str
    kind: Kind
    mask: Tensor
    transposed: bool = False
    cost: int = 1
    shards: Shards = field(default_factory=Shards)
    optimizer: Optimizer | None = None
    param_group: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    step: int = 0
    temp: dict[str, Tensor] = field(default_factory=dict)
    cut: float | None = None
    grad_scale: Tensor | None = None
    reserved: Tensor | None = None
    seen: tuple[torch.dtype, torch.device] | None = None
    _kept: tuple[Tensor, int, Tensor | None] | None = None  # the mask, its version, and its positions then

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter, as its module holds it now."""
        return getattr(self.module, self.attribute)

    @property
    def key(self) -> str:
        """The name without wrappers: that of checkpoints."""
        return canonical(self.name)

    @property
    def weight(self) -> Tensor:
        """The values (of this rank's part), without gradient tracking."""
        return local(self.parameter.detach())

    @property
    def lr(self) -> float:
        """The learning rate of this weight now."""
        return float(self.optimizer.param_groups[self.param_group]["lr"]) if self.optimizer else 0.0

    @property
    def value(self) -> Tensor:
        """What is ranked by magnitude: the latent of a latent method, or the weight."""
        latent = self.state.get("latent")
        return self.weight if latent is None else latent

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole weight."""
        return self.parameter.shape

    @property
    def rows(self) -> int:
        """Output units: the rows of the weight as a matrix."""
        return self.shape[1] if self.transposed else self.shape[0]

    @property
    def refills(self) -> bool:
        """Whether the layer's forward turns the zeros of its weight into other values."""
        return standardises(self.module)

    @property
    def numel(self) -> int:
        """The number of weights, over all ranks."""
        return self.parameter.numel()

    @property
    def grad(self) -> Tensor:
        """The dense gradient the optimizer sees: accumulated, all-reduced, unscaled; zeros if there is none."""
        grad = self.parameter.grad
        if grad is None:
            return torch.zeros_like(self.weight)
        grad = local(grad).detach()
        return grad if self.grad_scale is None else grad / self.grad_scale.to(grad)

    @torch.no_grad()
    def add_gradient(self, term: Tensor) -> None:
        """Add to the gradient that the optimizer will see, which may still carry a loss scale.

        Args:
            term: What to add, of the weight's shape and without a loss scale.
        """
        assert self.parameter.grad is not None
        local(self.parameter.grad).add_(term if self.grad_scale is None else term * self.grad_scale.to(term))

    def count(self, mask: Tensor) -> int:
        """True entries of a mask of this layer, over all ranks that share it.

        Args:
            mask: A bool tensor of this rank's part.
        """
        return int(self.shards.sum(torch.count_nonzero(mask)))

    def kept(self) -> int:
        """How many weights the mask keeps."""
        return self.count(self.mask)

    def random(self, purpose: str = "") -> Tensor:
        """Uniform random numbers of the weight's shape, the same on every rank and after every resume.

        Args:
            purpose: What they are for: each purpose has numbers of its own.
        """
        generator = seeded(self.seed, self.step, f"{self.key}/{purpose}" if purpose else self.key)
        return self.part(torch.rand(self.shape, generator=generator, device="cpu")).to(self.weight.device)

    def normal(self, purpose: str, step: int | None = None) -> Tensor:
        """Standard normal random numbers of the weight's shape, the same on every rank and after every resume.

        Args:
            purpose: What they are for: each purpose has numbers of its own.
            step: The optimizer step they are drawn for; None: that of the update under way.
        """
        generator = seeded(self.seed, self.step if step is None else step, f"{self.key}/{purpose}")
        return self.part(torch.randn(self.shape, generator=generator, device="cpu")).to(self.weight)

    def rms(self, values: Tensor, where: Tensor) -> float:
        """Root mean square, over all ranks that share the layer.

        Args:
            values: A tensor of the weight's shape.
            where: A mask of the positions to average over; all of them if it is empty.
        """
        chosen = values[where] if self.count(where) else values
        sums = torch.stack([chosen.double().square().sum(), chosen.new_tensor(chosen.numel(), dtype=torch.float64)])
        energy, count = self.shards.sum(sums).tolist()
        return float((energy / count) ** 0.5) if count else 0.0

    def whole(self, part: Tensor) -> Tensor:
        """The full tensor, gathered from the ranks' parts.

        Args:
            part: This rank's part.
        """
        return self.shards.gather(part)

    def part(self, whole: Tensor) -> Tensor:
        """This rank's part of a full tensor.

        Args:
            whole: A tensor of the shape of the whole weight.
        """
        return self.shards.scatter(whole)

    def matrix(self, values: Tensor) -> Tensor:
        """Values of the weight's shape with the output units first: (out, in, *kernel), also where it is transposed.

        Args:
            values: A tensor of the weight's shape.
        """
        return values.transpose(0, 1) if self.transposed else values

    def like(self, matrix: Tensor) -> Tensor:
        """Back from `matrix` to the weight's own layout.

        Args:
            matrix: A tensor of the shape that `matrix` returns.
        """
        return matrix.transpose(0, 1) if self.transposed else matrix

    def optimizer_state(self) -> list[Tensor]:
        """The optimizer's tensors of the weight's shape: momenta and moments, whatever their names."""
        state = self.optimizer.state.get(self.parameter, {}) if self.optimizer else {}
        return [local(value) for value in state.values() if self._is_per_weight(value)]

    @torch.no_grad()
    def clear_state(self, keep: Tensor) -> None:
        """Set the optimizer's state to the value 0 where `keep` is False.

        Args:
            keep: A mask of the weight's shape.
        """
        state = self.optimizer.state.get(self.parameter, {}) if self.optimizer else {}
        for name, value in state.items():
            if self._is_per_weight(value) and not _zero_quantized(state, name, local(value), keep):
                masks.apply_mask_(local(value), keep)

    def _is_per_weight(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.shape == self.shape

    @torch.no_grad()
    def match_weight(self) -> None:
        """Move mask and state to the dtype and device of the weight, which `model.to` may have changed."""
        weight = self.weight
        if self.seen == (weight.dtype, weight.device):
            return
        before, self.seen = self.seen, (weight.dtype, weight.device)
        self.mask = self.mask.to(weight.device)
        for key, value in self.state.items():
            if isinstance(value, Tensor):
                same = before is not None and value.dtype == before[0]
                self.state[key] = value.to(weight.device, weight.dtype if same else value.dtype)

    @torch.no_grad()
    def apply_mask_to_weight_and_state(self) -> None:
        """Write exact zeros outside the mask, in the weight and in the optimizer's state."""
        self.apply_mask(self.weight)
        self.clear_state(self.mask)

    @torch.no_grad()
    def apply_mask(self, tensor: Tensor) -> None:
        """Write exact zeros, in place, outside the mask, over NaN too.

        Args:
            tensor: A tensor of the weight's shape.
        """
        masks.apply_mask_(tensor, self.mask.to(tensor.device))

    def positions(self, *tensors: Tensor) -> Tensor | None:
        """Where the mask keeps, as positions in memory order: an index that is much cheaper than a sparse mask.

        Args:
            tensors: Tensors of the weight's shape to be indexed, each as `masks.in_memory_order` returns it.

        Returns:
            The positions; None if the mask is not sparse, or one of the tensors has other strides than it.
        """
        if any(tensor.stride() != self.mask.stride() for tensor in tensors):
            return None
        if self._kept is None or self._kept[0] is not self.mask or self._kept[1] != self.mask._version:
            self._kept = (self.mask, self.mask._version, masks.sparse_positions(self.mask))
        return self._kept[2]

    def keep_only(self, chosen: Chosen) -> bool:
        """Set the mask to these entries.

        Args:
            chosen: The entries.

        Returns:
            Whether it was set: not if the scores that they were chosen by lie otherwise in memory than the mask.
        """
        if chosen.stride != self.mask.stride():
            return False
        self.mask.zero_()
        masks.in_memory_order(self.mask)[chosen.positions] = True
        if masks.SPARSE * len(chosen.positions) <= self.mask.numel():
            self._kept = (self.mask, self.mask._version, chosen.positions)
        return True

    def copy_kept(self, target: Tensor, source: Tensor) -> Tensor:
        """Copy what the mask keeps from one tensor into another, in place.

        Args:
            target: The tensor to write to.
            source: The tensor to copy from.

        Returns:
            The target.
        """
        kept = self.positions(target, source)
        if kept is None:
            return target.copy_(torch.where(self.mask, source, target))
        masks.in_memory_order(target)[kept] = masks.in_memory_order(source)[kept]
        return target

    def fill_kept(self, target: Tensor, value: float) -> Tensor:
        """Set what the mask keeps to a value, in place.

        Args:
            target: The tensor to write to.
            value: The value.

        Returns:
            The target.
        """
        kept = self.positions(target)
        if kept is None:
            return target.masked_fill_(self.mask, value)
        masks.in_memory_order(target)[kept] = value
        return target


def _zero_quantized(state: Mapping[str, Any], name: str, tensor: Tensor, keep: Tensor) -> bool:
    """Write the value 0 where `keep` is False, if this state tensor is quantized; return whether it is.

    The code of a quantized 0 need not be 0. It is the code whose value is nearest 0 (0 itself in practice), found in
    the table of values: beside the codes (`state1` and `qmap1`, bitsandbytes) or inside a tensor subclass (`codes` and
    `qmap`, torchao). Any other subclass that can `dequantize` is quantized again as a whole.

    Args:
        state: The optimizer's state of one parameter.
        name: The key of the tensor in it.
        tensor: The tensor.
        keep: A mask of its shape.
    """
    if type(tensor).dequantize is Tensor.dequantize:
        codes: Any = tensor
        values = state.get(name.replace("state", "qmap")) if name.startswith("state") else None
        if tensor.is_floating_point() or not isinstance(values, Tensor):
            return False
    else:
        codes, values = getattr(tensor, "codes", None), getattr(tensor, "qmap", None)
    if isinstance(codes, Tensor) and isinstance(values, Tensor) and codes.shape == keep.shape:
        codes.masked_fill_(~keep, int(values.abs().argmin()))
    else:
        tensor.copy_(torch.where(keep, tensor.dequantize(), 0.0))
    return True


def all_finite(layers: Sequence[PrunableLayer], grads: bool = True) -> bool:
    """Whether all weights and gradients are finite. A sum is finite only if all entries are: one device sync for all.

    Args:
        layers: The layers to check.
        grads: Whether to check their gradients too.
    """
    parameters = [layer.parameter for layer in layers]
    tensors = [*parameters, *(p.grad for p in parameters if grads and p.grad is not None)]
    parts = [local(tensor.detach()) for tensor in tensors]
    sums = [p.sum(dtype=torch.float32 if p.element_size() < 4 else None).double() for p in parts]
    bad = torch.count_nonzero(~torch.isfinite(torch.stack([s.to(sums[0].device) for s in sums])))
    shards = next((layer.shards for layer in layers if layer.shards), layers[0].shards)
    return not bool(shards.sum(bad))
