"""Ranks of a whole model: of its weights (`profile`) and of its features (`feature_rank`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from rankprune._util import percent
from rankprune.prunable import weights_of

from .matching import structural_rank
from .spectrum import delta_rank_of, effective_rank_of, exact_rank, matrix, rank_of, rounding, svdvals
from .workers import run_in_parallel


@dataclass(frozen=True)
class RankRow:
    """One weight; `dead_rows` are output units (filters) without a single non-zero weight."""

    name: str
    shape: tuple[int, ...]
    nonzeros: int
    density: float
    full_rank: int
    exact_rank: int
    delta_rank: int
    effective_rank: float
    structural_rank: int
    dead_rows: int


@dataclass(frozen=True)
class RankProfile:
    """Ranks per layer at one `delta`; prints as a table."""

    delta: float
    rows: tuple[RankRow, ...]

    def mean_ratio(self) -> float:
        """Mean over the layers of delta-rank / min(m, n)."""
        return sum(row.delta_rank / row.full_rank for row in self.rows) / max(len(self.rows), 1)

    def __str__(self) -> str:
        width = max([len(row.name) for row in self.rows] + [5])
        title = f"{self.delta:g}-rank"
        lines = [
            f"{'layer':<{width}}  {'shape':>18}  {'nonzeros':>10}  {'density':>8}  {'min(m,n)':>8}  {'exact':>6}  "
            f"{title:>9}  {'effective':>9}  {'structural':>10}  {'dead rows':>9}"
        ]
        for r in self.rows:
            shape = "x".join(map(str, r.shape))
            lines.append(
                f"{r.name:<{width}}  {shape:>18}  {r.nonzeros:>10}  {percent(r.density):>8}  {r.full_rank:>8}  "
                f"{r.exact_rank:>6}  {r.delta_rank:>9}  {r.effective_rank:>9.1f}  {r.structural_rank:>10}  "
                f"{r.dead_rows:>9}"
            )
        exact = sum(r.exact_rank / r.full_rank for r in self.rows) / max(len(self.rows), 1)
        lines.append(
            f"mean of rank / min(m,n) over {len(self.rows)} layers: delta-rank at delta={self.delta:g} "
            f"{self.mean_ratio():.3f}, exact rank {exact:.3f}"
        )
        return "\n".join(lines)


def prunable_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Each weight once, by parameter name, as a matrix with one row per output.

    Args:
        model: The network.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}  # a tied weight by its first
    seen: set[int] = set()
    for name, module in model.named_modules():
        for attribute, _, transposed in weights_of(module):
            W = getattr(module, attribute)
            if W is not None and W.ndim > 1 and id(W) not in seen:
                seen.add(id(W))
                yield names.get(id(W), f"{name}.{attribute}".lstrip(".")), matrix(W.detach(), transposed)


def profile(model: nn.Module, delta: float = 0.1) -> RankProfile:
    """Ranks of every convolution, linear, attention and recurrent weight of `model`.

    Args:
        model: The network.
        delta: δ of the delta-rank.

    Returns:
        One row per weight; prints as a table.
    """
    weights = dict(prunable_weights(model))
    rows: dict[str, RankRow] = {}

    def work(name: str) -> None:
        rows[name] = _row(name, weights[name], delta)

    run_in_parallel(work, weights, cost=lambda name: weights[name].numel() * min(weights[name].shape))
    return RankProfile(delta, tuple(rows[name] for name in weights))


def _row(name: str, M: Tensor, delta: float) -> RankRow:
    s = svdvals(M)
    nonzeros = int(M.count_nonzero())
    return RankRow(
        name=name,
        shape=tuple(M.shape),
        nonzeros=nonzeros,
        density=nonzeros / M.numel(),
        full_rank=min(M.shape),
        exact_rank=rank_of(s, rounding(M.shape, torch.float64)),
        delta_rank=delta_rank_of(s, delta),
        effective_rank=effective_rank_of(s),
        structural_rank=structural_rank(M),
        dead_rows=int((M == 0).all(1).sum()),
    )


@torch.no_grad()
def feature_rank(model: nn.Module, batch: Tensor) -> dict[str, int]:
    """Rank of W X, the output of each convolution and linear layer on `batch` without its bias, (channels, positions).

    It is at most min(rank W, rank X). Values below the rounding of the output's dtype count as zero; a layer that is
    called several times reports its last call. The modes of the model are restored.

    Args:
        model: The network.
        batch: Its input.

    Returns:
        The rank by name of the layer.
    """
    ranks: dict[str, int] = {}

    def recorder(name: str) -> Callable[[nn.Module, tuple, Tensor], None]:
        def record(module: nn.Module, _: tuple, output: Tensor) -> None:
            ranks[name] = exact_rank(*_features(cast("_ConvNd | nn.Linear", module), output))

        return record

    modes = {m: m.training for m in model.modules()}
    watched = [(name, m) for name, m in model.named_modules() if isinstance(m, (_ConvNd, nn.Linear))]
    handles = [m.register_forward_hook(recorder(name)) for name, m in watched]
    model.eval()
    try:
        model(batch)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return ranks


def _features(module: _ConvNd | nn.Linear, output: Tensor) -> tuple[Tensor, float]:
    """The output without its bias, (channels, positions), and the relative tolerance of its dtype."""
    channel = -len(module.kernel_size) - 1 if isinstance(module, _ConvNd) else -1
    X = output.movedim(channel, 0).flatten(1).double()
    if module.bias is not None:
        X = X - module.bias.double()[:, None]
    return X, rounding(X.shape, output.dtype)
