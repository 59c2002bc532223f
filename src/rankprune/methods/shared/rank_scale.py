"""The size of the rank term where it is not simply λ: as a ratio to the task gradient, or as noise, for a control."""

from __future__ import annotations

from torch import Tensor

from rankprune.core.layer import PrunableLayer

RATIO = "ratio:"  # the prefix of a λ such as "ratio:0.3"


def scaled(layer: PrunableLayer, rank_grad: Tensor, lam: float | str, where: Tensor) -> Tensor:
    """Multiply a rank gradient, in place, by λ or so that its size is a given ratio of the task gradient's.

    A ratio means the same at every batch size, learning rate and stage of training.

    Args:
        layer: The layer, with its task gradient.
        rank_grad: The gradient of its rank loss.
        lam: λ, or "ratio:R": the root mean square becomes R times that of the task gradient.
        where: The positions over which root mean squares are taken: those at which the term will act.

    Returns:
        `rank_grad`.
    """
    if isinstance(lam, str):
        own = layer.rms(rank_grad, where)
        lam = float(lam.removeprefix(RATIO)) * layer.rms(layer.grad, where) / own if own > 0 else 0.0
    return rank_grad.mul_(lam)


def noise_like(layer: PrunableLayer, term: Tensor, where: Tensor, step: int) -> Tensor:
    """Normal noise as large as a term: the control that shows whether its direction matters.

    Args:
        layer: The layer.
        term: The term that the noise stands in for.
        where: The positions over which the root mean square of the term is taken.
        step: The optimizer step, which keys the noise.

    Returns:
        Noise of the term's shape, the same on every rank.
    """
    return layer.normal("noise", step) * layer.rms(term, where)


def check_coefficients(lam: object, delta: object) -> None:
    """Check λ and δ̃ of the rank loss.

    Args:
        lam: A number from 0, "ratio:R" with R from 0, a schedule or None.
        delta: A number from 0 to 1, a schedule or None.

    Raises:
        ValueError: One of them is something else.
    """
    if not (delta is None or callable(delta) or (isinstance(delta, (int, float)) and 0.0 <= delta <= 1.0)):
        raise ValueError(f"delta={delta!r} is not a number from 0 to 1: give one, or a schedule")
    if lam is None or callable(lam):
        return
    number = None if isinstance(lam, bool) else lam
    if isinstance(lam, str):
        try:
            number = float(lam.removeprefix(RATIO)) if lam.startswith(RATIO) else None
        except ValueError:
            number = None
    if not isinstance(number, (int, float)) or not 0.0 <= number < float("inf"):
        raise ValueError(f"lam={lam!r} is neither a number from 0, nor a ratio such as 'ratio:0.3', nor a schedule")
