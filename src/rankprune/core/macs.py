"""Multiply-accumulates of one forward pass of a model, dense and sparse.

A MAC is one multiplication of a weight by an input, so a layer has weights x positions of them; 1 MAC is 2 FLOPs.
Biases, norms, activations and the softmax(QK)V of attention have no prunable weight and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from rankprune.prunable import PROJECTIONS, weights_of

# (name of the weight, block of its rows, blocks it has) -> positions it was applied at, over all calls
_Uses = dict[tuple[str, int, int], int]


@dataclass(frozen=True)
class FlopRow:
    """MACs of one weight in one forward pass.

    Attributes:
        name: As in `named_parameters()`.
        shape: The shape of the weight.
        dense: MACs with all weights.
        sparse: MACs with the weights that are kept.
    """

    name: str
    shape: tuple[int, ...]
    dense: int
    sparse: float

    @property
    def ratio(self) -> float:
        """Sparse MACs as a share of the dense ones."""
        return self.sparse / self.dense if self.dense else 0.0


@dataclass(frozen=True)
class FlopReport:
    """MACs per layer and in total; prints as a table.

    Attributes:
        rows: One row for each weight that took part in the pass.
    """

    rows: tuple[FlopRow, ...]

    @property
    def dense(self) -> int:
        """MACs of the dense model."""
        return sum(row.dense for row in self.rows)

    @property
    def sparse(self) -> float:
        """MACs over the weights that are kept."""
        return sum(row.sparse for row in self.rows)

    @property
    def ratio(self) -> float:
        """Inference cost as a share of the dense model's."""
        return self.sparse / self.dense if self.dense else 0.0

    def at(self, densities: Mapping[str, float]) -> FlopReport:
        """The same pass at other layer densities.

        Args:
            densities: The share of weights kept, by name; a layer that is not named is dense.

        Returns:
            A report with those sparse MACs.

        Raises:
            KeyError: A name is not that of a weight in the report.
        """
        _check_names(densities, [row.name for row in self.rows])
        return FlopReport(
            tuple(FlopRow(r.name, r.shape, r.dense, r.dense * densities.get(r.name, 1.0)) for r in self.rows)
        )

    def __str__(self) -> str:
        width = max([len(row.name) for row in self.rows] + [5])
        lines = [f"{'layer':<{width}}  {'shape':>18}  {'dense MACs':>17}  {'sparse MACs':>17}  ratio"]
        for r in [*self.rows, FlopRow("total", (), self.dense, self.sparse)]:
            shape = "x".join(map(str, r.shape))
            lines.append(f"{r.name:<{width}}  {shape:>18}  {r.dense:>17,}  {r.sparse:>17,.0f}  {r.ratio:.3f}")
        return "\n".join(lines)


def count(model: nn.Module, example: Any, masks: Mapping[str, Tensor] | None = None) -> FlopReport:
    """Count the MACs of one forward pass.

    A layer that is called twice, or a weight that two layers share, counts twice. Mode, gradients and buffers of the
    model stay as they were.

    Args:
        model: The network.
        example: Its input: a tensor, a tuple of arguments or a dict of named ones.
        masks: Masks by name of `named_parameters()`, whose non-zero entries are counted as kept; for a weight without a
            mask, its non-zero entries are.

    Returns:
        Dense and sparse MACs per weight; prints as a table.

    Raises:
        KeyError: A mask is given for a weight that the model does not have.

    Example:
        print(rp.flops.count(model, torch.zeros(1, 3, 224, 224)))
    """
    weights, uses = _uses(model, example)
    masks = masks or {}
    _check_names(masks, weights)
    rows = []
    for name, W in weights.items():
        positions = {(block, blocks): n for (key, block, blocks), n in uses.items() if key == name}
        pattern = masks.get(name, W.detach())
        dense = sum(W.numel() // blocks * n for (_, blocks), n in positions.items())
        kept = sum(int(pattern.chunk(blocks)[block].count_nonzero()) * n for (block, blocks), n in positions.items())
        rows.append(FlopRow(name, tuple(W.shape), dense, kept))
    return FlopReport(tuple(row for row in rows if row.dense))


def positions(model: nn.Module, example: Any) -> dict[str, int]:
    """Count the positions at which one weight of each layer is applied in a forward pass: its cost in MACs.

    Args:
        model: The network.
        example: Its input: a tensor, a tuple of arguments or a dict of named ones.

    Returns:
        MACs of one weight by parameter name, of the layers that took part in the pass.
    """
    weights, uses = _uses(model, example)
    totals: dict[str, int] = {}
    blocks_of: dict[str, int] = {}
    for (name, _, blocks), n in uses.items():
        totals[name], blocks_of[name] = totals.get(name, 0) + n, blocks
    # The mean over the blocks (query, key and value of a fused projection), rounded once.
    return {name: round(totals[name] / blocks_of[name]) for name in weights if totals.get(name)}


def _uses(model: nn.Module, example: Any) -> tuple[dict[str, Tensor], _Uses]:
    """The countable weights by parameter name, and the positions at which they were applied."""
    uses: _Uses = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        own = {}
        for attribute, _, _ in weights_of(module):
            if (weight := getattr(module, attribute)) is not None:
                own[attribute] = names.get(id(weight), _join(name, attribute))  # a tied weight: its first name
                weights[own[attribute]] = weight
        if isinstance(module, nn.MultiheadAttention):
            handles.append(module.register_forward_hook(_attention_hook(name, uses), with_kwargs=True))
        elif own:
            handles.append(module.register_forward_hook(_layer_hook(list(own.values()), uses), with_kwargs=True))
    try:
        _forward(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return weights, uses


def _join(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter


def _check_names(named: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in named:
        if name not in known:
            raise KeyError(f"The model has no countable weight '{name}'; name one of {', '.join(known[:4])}, ...")


@torch.no_grad()
def _forward(model: nn.Module, example: Any) -> None:
    modes = [(module, module.training) for module in model.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the fast path runs an encoder layer without calling its modules
    model.eval()
    try:
        if isinstance(example, Mapping):
            model(**example)
        else:
            model(*(example if isinstance(example, tuple) else (example,)))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, mode in modes:
            module.training = mode


def _layer_hook(names: Sequence[str], uses: _Uses) -> Callable[..., None]:
    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = args[0] if args else next(iter(kwargs.values()))
        for name in names:
            uses[name, 0, 1] = uses.get((name, 0, 1), 0) + _positions_in(module, given, output)

    return record


def _positions_in(module: nn.Module, given: Any, output: Any) -> int:
    """Positions at which a call applies each weight: outputs (kernel), inputs (transposed), tokens (RNN, linear)."""
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        tokens = given.data if isinstance(given, PackedSequence) else given
        return tokens.numel() // module.input_size
    if isinstance(module, _ConvTransposeNd):
        return given.numel() // module.in_channels
    return output.numel() // (module.out_channels if isinstance(module, _ConvNd) else output.shape[-1])


def _attention_hook(name: str, uses: _Uses) -> Callable[..., None]:
    """Attention applies its projections without calling a module for them, so positions are those of its arguments."""

    def record(module: nn.MultiheadAttention, args: tuple, kwargs: dict, _: Any) -> None:
        given = dict(zip(("query", "key", "value"), args)) | kwargs
        tokens = [given[x].numel() // given[x].shape[-1] for x in ("query", "key", "value")]
        if module.in_proj_weight is not None:
            positions = {(_join(name, "in_proj_weight"), block, 3): n for block, n in enumerate(tokens)}
        else:
            positions = {(_join(name, key), 0, 1): n for key, n in zip(PROJECTIONS[1:], tokens)}
        positions[_join(name, "out_proj.weight"), 0, 1] = tokens[0]
        for key, n in positions.items():
            uses[key] = uses.get(key, 0) + n

    return record
