"""What WoodFisher and CAP share: surgery with a block-wise empirical Fisher, within a bound on memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rankprune.core.method import Group, Site

from .surgery import Surgery


@dataclass
class FisherSurgery(Surgery, ABC):
    """Each pruning measures the curvature of every layer, ranks the weights by it, and corrects those that stay.

    The curvature is the empirical Fisher of `gradients` gradients over `minibatch` samples each, in blocks of `block`
    consecutive weights of a layer. Where the curvature of all layers does not fit into `memory` bytes, it is measured
    for some layers at a time (never less than one), twice: once to rank and once to correct.
    """

    gradients: int = field(default=400, kw_only=True)
    minibatch: int = field(default=1, kw_only=True)
    block: int = field(default=2000, kw_only=True)
    damping: float = field(default=1e-5, kw_only=True)
    memory: int = field(default=2 * 10**9, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gradients", "minibatch", "block", "damping"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{self.info.name} has {name}={getattr(self, name)!r}: it must be positive")

    @abstractmethod
    def size(self, site: Site) -> int:
        """Bytes of the curvature of a site."""

    @abstractmethod
    def curvature(self, group: Group, masks: Mapping[Site, Tensor]) -> list[Tensor]:
        """The curvature of each site, in the form that `importance` and `change` take."""

    @abstractmethod
    def importance(self, site: Site, curvature: Tensor) -> Tensor:
        """What the score is made of, flat; it becomes `site.scratch`."""

    @abstractmethod
    def change(self, site: Site, before: Tensor, curvature: Tensor) -> Tensor:
        """What is subtracted from the weights, flat, when the mask has fallen from `before` to `site.mask`."""

    def update(self, group: Group) -> None:
        parts = [{site: site.mask.clone() for site in part} for part in self.parts(group.sites)]
        held: list[Tensor] = []
        for part in parts:
            held = self.curvature(group, part)
            for site, found in zip(part, held):
                site.scratch = self.importance(site, found).view(site.shape).to(site.weight)
        super().update(group)
        changes = {}
        for part in parts:
            if len(parts) > 1:  # else it is still here
                held = self.curvature(group, part)
            for (site, before), found in zip(part.items(), held):
                changes[site] = self.change(site, before, found)
        for site, change in changes.items():
            site.weight.sub_(change.view(site.shape).to(site.weight))

    def parts(self, sites: Sequence[Site]) -> list[list[Site]]:
        """The sites, in order, in groups whose curvature fits into `memory`."""
        found: list[list[Site]] = []
        held = 0
        for site in sites:
            size = self.size(site)
            if not found or held + size > self.memory:
                found.append([])
                held = 0
            found[-1].append(site)
            held += size
        return found
