"""SViT-E (Chen et al. 2021), its unstructured part: RigL as it is used on vision transformers."""

from __future__ import annotations

from dataclasses import dataclass

from rankprune.core.keywords import PeriodicKeywords
from rankprune.core.method import register
from rankprune.core.plan import Periodic, Plan
from rankprune.methods.shared.sparse_learning import SparseLearning


@register(
    "svite", paper="Chen et al. 2021, arXiv:2106.04533", family="drop and grow", needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class SViTE(SparseLearning, PeriodicKeywords):
    """RigL for transformers under AdamW: drop the smallest, grow by gradient, rarely, and after the optimizer step.

    Attention, MLP, patch embedding and head are all pruned. The authors draw each weight of the first mask on its own;
    here the counts of the ERK distribution are exact. Their Adam moments stay behind the mask; ours are zero there.
    """

    distribution: str = "erk"
    plan: Plan = Periodic(update_end=0.8)
