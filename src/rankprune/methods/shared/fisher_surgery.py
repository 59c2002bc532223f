"""What WoodFisher and CAP share: surgery with a block-wise empirical Fisher, within a bound on memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rankprune.core.method import Group, PrunableLayer

from .surgery import Surgery


@dataclass(kw_only=True)
class FisherSurgery(Surgery):
    """Each pruning measures the curvature of every layer, ranks the weights by it, and corrects those that stay.

    The curvature is the empirical Fisher of `gradients` gradients over `minibatch` samples each, in blocks of `block`
    consecutive weights of a layer. If the curvature of all layers does not fit into `memory` bytes, it is measured for
    some layers at a time (at least one), twice: once to rank and once to correct.

    Args:
        gradients: How many gradients the Fisher is measured from.
        minibatch: Samples per gradient.
        block: Consecutive weights of a layer whose curvature is taken together.
        damping: λ, added to the diagonal of the Fisher.
        memory: Bytes that the curvature may take at a time.
    """

    gradients: int = 400
    minibatch: int = 1
    block: int = 2000
    damping: float = 1e-5
    memory: int = 2 * 10**9

    def __post_init__(self) -> None:
        for name in ("gradients", "minibatch", "block", "damping"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{self.info.name} has {name}={getattr(self, name)!r}: it must be positive")

    @abstractmethod
    def size(self, layer: PrunableLayer) -> int:
        """Bytes of the curvature of a layer.

        Args:
            layer: The layer.
        """

    @abstractmethod
    def curvature(self, group: Group, masks: Mapping[PrunableLayer, Tensor]) -> list[Tensor]:
        """The curvature of each layer, in the form that `importance` and `change` take.

        Args:
            group: The layers that the method works on.
            masks: The masks to measure under, by layer.
        """

    @abstractmethod
    def importance(self, layer: PrunableLayer, curvature: Tensor) -> Tensor:
        """What the score is computed from, flat; stored as `layer.temp["inverse_diagonal"]`.

        Args:
            layer: The layer.
            curvature: Its curvature.
        """

    @abstractmethod
    def change(self, layer: PrunableLayer, before: Tensor, curvature: Tensor) -> Tensor:
        """What to subtract from the weights, flat, when the mask has shrunk from `before` to `layer.mask`.

        Args:
            layer: The layer.
            before: Its mask before the pruning.
            curvature: Its curvature.
        """

    def update(self, group: Group) -> None:
        parts = [{layer: layer.mask.clone() for layer in part} for part in self.parts(group.layers)]
        curvatures: list[Tensor] = []
        for part in parts:
            curvatures = self.curvature(group, part)
            for layer, curvature in zip(part, curvatures):
                layer.temp["inverse_diagonal"] = self.importance(layer, curvature).view(layer.shape).to(layer.weight)
        super().update(group)
        changes = {}
        for part in parts:
            if len(parts) > 1:  # with one part its curvature is still in memory
                curvatures = self.curvature(group, part)
            for (layer, before), curvature in zip(part.items(), curvatures):
                changes[layer] = self.change(layer, before, curvature)
        for layer, change in changes.items():
            layer.weight.sub_(change.view(layer.shape).to(layer.weight))

    def parts(self, layers: Sequence[PrunableLayer]) -> list[list[PrunableLayer]]:
        """The layers, in order, in groups whose curvature fits into `memory`.

        Args:
            layers: The layers.
        """
        parts: list[list[PrunableLayer]] = []
        used = 0
        for layer in layers:
            size = self.size(layer)
            if not parts or used + size > self.memory:
                parts.append([])
                used = 0
            parts[-1].append(layer)
            used += size
        return parts
