"""Ranks of weight matrices, the gradient of the rank loss, and tables of both over a model."""

from __future__ import annotations

from .gradient import rank_grad, rank_grads
from .matching import structural_rank
from .spectrum import (
    choose_k,
    delta_rank,
    effective_rank,
    exact_rank,
    low_rank,
    matrix,
    rank_loss,
    svdvals,
    tail_energy,
)
from .table import RankProfile, RankRow, feature_rank, profile

__all__ = [
    "RankProfile",
    "RankRow",
    "choose_k",
    "delta_rank",
    "effective_rank",
    "exact_rank",
    "feature_rank",
    "low_rank",
    "matrix",
    "profile",
    "rank_grad",
    "rank_grads",
    "rank_loss",
    "structural_rank",
    "svdvals",
    "tail_energy",
]
