"""What the rank loss adds to a gradient: its own gradient times λ, or scaled to a multiple of the task's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankprune.core.layer import PrunableLayer, seeded
from rankprune.core.schedules import Value, value_at

from .rank_work import rank_gradients

RATIO = "ratio:"  # the prefix of a λ such as "ratio:0.3"


@dataclass(frozen=True)
class RankTerm:
    """Settings of the rank term.

    Attributes:
        lam: λ as a number or schedule, or "ratio:R": each layer's rank gradient is scaled so that its root mean square
            is R times that of the task's gradient at the same positions. A ratio means the same at every batch size,
            learning rate and stage of training.
        delta: δ̃, the share of energy beyond the rank k.
        reduction: "mean" or "sum" of the layers' rank losses; without effect on a ratio.
        signal: "rank", or "noise" of the same size as a control.
    """

    lam: Value | str
    delta: Value
    reduction: str = "mean"
    signal: str = "rank"

    def active(self, step: int) -> bool:
        """Whether the term is other than zero at this step."""
        return bool(self._ratio() if isinstance(self.lam, str) else value_at(self.lam, step))

    def of(
        self,
        layers: Sequence[PrunableLayer],
        where: Callable[[PrunableLayer], Tensor],
        step: int,
        model: nn.Module | None = None,
    ) -> list[Tensor]:
        """The term of each layer. Sizes are taken over `where(layer)`, the positions at which the term will act."""
        terms = rank_gradients(layers, value_at(self.delta, step), model)
        trained = sum(layer.count(layer.weight) > 0 for layer in layers) if self.reduction == "mean" else 1
        found = []
        for layer, term in zip(layers, terms):
            positions = where(layer)
            if isinstance(self.lam, str):
                own = rms(layer, term, positions)
                term.mul_(self._ratio() * rms(layer, layer.grad, positions) / own if own > 0 else 0.0)
            else:
                term.mul_(value_at(self.lam, step) / max(trained, 1))
            found.append(noise(layer, rms(layer, term, positions), step) if self.signal == "noise" else term)
        return found

    def _ratio(self) -> float:
        assert isinstance(self.lam, str)
        return float(self.lam.removeprefix(RATIO))


def check_lam(lam: object) -> None:
    """Raise unless λ is a number from 0, "ratio:R" with R from 0, a schedule or None."""
    if lam is None or callable(lam):
        return
    if isinstance(lam, str) and lam.startswith(RATIO):
        try:
            number: object = float(lam.removeprefix(RATIO))
        except ValueError:
            number = None
    else:
        number = None if isinstance(lam, (str, bool)) else lam
    if not isinstance(number, (int, float)) or not 0.0 <= number < float("inf"):
        raise ValueError(f"lam={lam!r} is neither a number from 0, nor a ratio such as 'ratio:0.3', nor a schedule")


def check_delta(delta: object) -> None:
    """Raise unless δ̃ is a number from 0 to 1, a schedule or None."""
    if delta is not None and not callable(delta) and not (isinstance(delta, (int, float)) and 0.0 <= delta <= 1.0):
        raise ValueError(f"delta={delta!r} is not a number from 0 to 1: give one, or a schedule")


def rms(layer: PrunableLayer, values: Tensor, where: Tensor) -> float:
    """Root mean square over the positions in `where`, or over all where there are none."""
    chosen = values[where] if layer.count(where) else values
    sums = torch.stack([chosen.double().square().sum(), chosen.new_tensor(chosen.numel(), dtype=torch.float64)])
    energy, count = layer.shards.sum(sums).tolist()
    return float((energy / count) ** 0.5) if count else 0.0


def noise(layer: PrunableLayer, size: float, step: int) -> Tensor:
    """Normal noise with this root mean square: keyed by seed, step and name, so every rank draws the same."""
    drawn = torch.randn(layer.shape, generator=seeded(layer.seed, step, f"{layer.key}/noise"))
    return layer.part(drawn.to(layer.weight)) * size
