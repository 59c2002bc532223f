"""CAP, the correlation-aware pruner (Kuznedelev et al. 2023): optimal brain surgery one weight after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rankprune.core.keywords import RoundsKeywords
from rankprune.core.method import Group, PrunableLayer, register
from rankprune.methods.shared.elimination import removal_change, removal_costs
from rankprune.methods.shared.fisher import fisher_blocks
from rankprune.methods.shared.fisher_surgery import FisherSurgery


@register(
    "cap", paper="Kuznedelev et al. 2023, arXiv:2210.09223", family="second order", needs=("data", "loss"),
)  # fmt: skip
@dataclass(kw_only=True)
class CAP(FisherSurgery, RoundsKeywords):
    """Cut weights one by one within each block of the Fisher, each chosen in the light of those already gone.

    WoodFisher prices all cuts at once, as if each were alone, so that of two weights that can stand in for one another
    both look cheap. Here a block is taken apart greedily: the weight with the least w²/(2 [F⁻¹]_ww) goes, the others
    move to make up for it, F⁻¹ becomes that of what is left, and so on to the last. A weight's score is the loss that
    its block has gained when it goes, compared over all blocks and layers; those that stay move to the optimum.

    Memory of a pruning: 8 · block bytes for each weight whose curvature is held at once (see `memory`), and some 64 MB
    temporaries; its time grows with weights · block². `data` must allow being gone through again.

    Args:
        gradients: How many gradients the Fisher is measured from.
        block: Consecutive weights of a layer whose curvature is taken together.
        damping: λ, added to the diagonal of the Fisher.
    """

    gradients: int = 1024
    block: int = 192
    damping: float = 1e-8

    def size(self, layer: PrunableLayer) -> int:
        return 8 * layer.numel * min(self.block, layer.numel)

    def curvature(self, group: Group, masks: Mapping[PrunableLayer, Tensor]) -> list[Tensor]:
        return fisher_blocks(group, masks, self.gradients, self.minibatch, self.block)

    def importance(self, layer: PrunableLayer, curvature: Tensor) -> Tensor:
        return removal_costs(curvature, layer.weight.flatten(), layer.mask.flatten(), self.damping)

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.temp["inverse_diagonal"]

    def change(self, layer: PrunableLayer, before: Tensor, curvature: Tensor) -> Tensor:
        cut = (before & ~layer.mask).flatten()
        return removal_change(curvature, layer.weight.flatten(), cut, self.damping)
