"""Multiply-accumulates of a model, dense and sparse, and the cost of training by a method as a share of dense training.

A MAC is one weight meeting one input, weights x positions; 1 MAC = 2 FLOPs. Biases, norms, activations and attention's
own softmax(QK)V hold no prunable weight and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.rnn import PackedSequence

from .prunable import PROJECTIONS, weights_of

# (name of the weight, block of its rows, blocks it has) -> positions it met, over all calls
_Uses = dict[tuple[str, int, int], int]


@dataclass(frozen=True)
class FlopRow:
    """MACs of one weight in one forward pass."""

    name: str
    shape: tuple[int, ...]
    dense: int
    sparse: float

    @property
    def ratio(self) -> float:
        return self.sparse / self.dense if self.dense else 0.0


@dataclass(frozen=True)
class FlopReport:
    """MACs per layer and in all; print it for a table."""

    rows: tuple[FlopRow, ...]

    @property
    def dense(self) -> int:
        return sum(row.dense for row in self.rows)

    @property
    def sparse(self) -> float:
        return sum(row.sparse for row in self.rows)

    @property
    def ratio(self) -> float:
        """Inference cost as a share of the dense model's."""
        return self.sparse / self.dense if self.dense else 0.0

    def at(self, densities: Mapping[str, float]) -> FlopReport:
        """The same pass at other layer densities; a layer that is not named is dense."""
        _refuse_strangers(densities, [row.name for row in self.rows])
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
    """MACs of one forward pass of `model` on `example`: a tensor, a tuple of arguments or a dict of named ones.

    Sparse counts the non-zero weights, or the non-zero entries of `masks[name]` where one is given. Names are those of
    `named_parameters()`. A layer that is called twice, or a weight that two layers share, counts twice. Mode, gradients
    and buffers of the model stay as they were.
    """
    weights, uses = _uses(model, example)
    masks = masks or {}
    _refuse_strangers(masks, weights)
    rows = []
    for name, W in weights.items():
        met = {(block, of): n for (key, block, of), n in uses.items() if key == name}
        pattern = masks.get(name, W.detach())
        kept = sum(int(pattern.chunk(of)[block].count_nonzero()) * n for (block, of), n in met.items())
        rows.append(FlopRow(name, tuple(W.shape), sum(W.numel() // of * n for (_, of), n in met.items()), kept))
    return FlopReport(tuple(row for row in rows if row.dense))


def positions(model: nn.Module, example: Any) -> dict[str, int]:
    """How many positions one weight of each layer meets in a forward pass: what it costs in MACs, by parameter name."""
    weights, uses = _uses(model, example)
    met: dict[str, int] = {}
    parts: dict[str, int] = {}
    for (name, _, blocks), n in uses.items():
        met[name], parts[name] = met.get(name, 0) + n, blocks  # the mean over the blocks: rounded once, at the end
    return {name: round(met[name] / parts[name]) for name in weights if met.get(name)}


def _uses(model: nn.Module, example: Any) -> tuple[dict[str, Tensor], _Uses]:
    """The countable weights by parameter name, and the positions they met."""
    uses: _Uses = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        own = {}
        for attribute, _, _ in weights_of(module):
            if (weight := getattr(module, attribute)) is not None:
                own[attribute] = names.get(id(weight), _join(name, attribute))  # a tied weight goes by its first name
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


def _refuse_strangers(named: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in named:
        if name not in known:
            raise KeyError(f"The model has no countable weight '{name}'; name one of {', '.join(known[:4])}, ...")


@torch.no_grad()
def _forward(model: nn.Module, example: Any) -> None:
    modes = [(module, module.training) for module in model.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it would run a whole encoder layer without calling its modules
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
        met = _positions_met(module, given, output)
        for name in names:
            uses[name, 0, 1] = uses.get((name, 0, 1), 0) + met

    return record


def _positions_met(module: nn.Module, given: Any, output: Any) -> int:
    """A kernel meets every output position, a transposed kernel every input position, an RNN's matrix every token."""
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        tokens = given.data if isinstance(given, PackedSequence) else given
        return tokens.numel() // module.input_size
    if isinstance(module, _ConvTransposeNd):
        return given.numel() // module.in_channels
    return output.numel() // (module.out_channels if isinstance(module, _ConvNd) else output.shape[-1])


def _attention_hook(name: str, uses: _Uses) -> Callable[..., None]:
    """Attention uses its weights without calling a module for them: count from its arguments."""

    def record(module: nn.MultiheadAttention, args: tuple, kwargs: dict, _: Any) -> None:
        given = dict(zip(("query", "key", "value"), args)) | kwargs
        tokens = [given[x].numel() // given[x].shape[-1] for x in ("query", "key", "value")]
        if module.in_proj_weight is not None:
            met = {(_join(name, "in_proj_weight"), block, 3): n for block, n in enumerate(tokens)}
        else:
            met = {(_join(name, key), 0, 1): n for key, n in zip(PROJECTIONS[1:], tokens)}
        met[_join(name, "out_proj.weight"), 0, 1] = tokens[0]
        for key, n in met.items():
            uses[key] = uses.get(key, 0) + n

    return record


# All three passes at the density of the step: the mean over the course is the cost.
_BY_COURSE = ("static", "random", "snip", "grasp", "synflow", "set", "deepr", "dsr", "magnitude", "lamp", "gmp",
              "acdc", "safe", "pbw", "lth", "sign_in", "woodfisher", "cap", "mlprune")  # fmt: skip
# Forward and input gradient sparse, but every weight (or latent) has its gradient at every step.
_DENSE_GRADIENT = ("snfs", "str", "probmask", "powerprop", "feather", "st3", "spartan")


def training_flops(
    method: str,
    f: float | Sequence[float],
    *,
    every: int = 100,
    backward: float = 1.0,
    update_end: float = 1.0,
    extra: float = 0.0,
) -> float:
    """Cost of training by `method` as a share of dense training, whose 3 passes per sample (forward, gradient of the
    activations, gradient of the weights) are 1.

    `f` is the cost of a sparse pass as a share of a dense one: a number, or its course over equal parts of the training
    for the methods that change density. `every` is the period of mask updates, `backward` the cost of Top-KAST's wider
    backward set, `update_end` the share of training with updates, `extra` further cost as a share (RPG's SVDs).
    """
    course = [float(x) for x in f] if isinstance(f, Sequence) else [float(f)]
    mean = math.fsum(course) / len(course)
    if method == "dense":
        share = 1.0
    elif method in _BY_COURSE:
        share = mean
    elif method in ("rigl", "svite", "east"):  # Evci et al. 2020, App. H: one dense weight gradient in every + 1 steps
        share = (3 * mean * every + 2 * mean + 1) / (3 * (every + 1))
    elif method in _DENSE_GRADIENT:
        share = (2 * mean + 1) / 3
    elif method == "topkast":
        share = (2 * mean + backward) / 3
    elif method in ("rpg", "granet"):  # GMP's course, and a dense weight gradient in `every` steps while masks move
        moving = course[: max(1, round(update_end * len(course)))]
        share = mean + math.fsum(1 - x for x in moving) / (3 * every * len(moving)) * update_end
    else:
        known = ", ".join(("dense", *_BY_COURSE, *_DENSE_GRADIENT, "rigl", "svite", "east", "topkast", "rpg", "granet"))
        raise ValueError(f"No training cost is known for method '{method}'; choose one of {known}.")
    return share + extra


def dense_training_flops(macs: float, samples: float) -> float:
    """FLOPs of dense training on that many samples: 3 passes, 2 FLOPs per MAC."""
    return 3 * 2 * macs * samples


def svd_flops(layers: nn.Module | Iterable[Sequence[int]], updates: int = 1) -> float:
    """FLOPs of a full SVD of each layer at each update, 2mn^2 + 11n^3 with n the number of columns, as the RPG paper
    counts them. `layers` is a model, whose convolutions are meant, or weight shapes. (`rank_grads` needs far fewer.)"""
    if isinstance(layers, nn.Module):
        layers = [m.weight.shape for m in layers.modules() if isinstance(m, _ConvNd)]
    sizes = [(shape[0], math.prod(shape[1:])) for shape in layers]
    return float(sum(2 * m * n**2 + 11 * n**3 for m, n in sizes) * updates)
