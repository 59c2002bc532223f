"""The weights one method works on, with their budget; and what composes with any method."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import budget as budgets
from .layer import Site
from .select import keep_largest, select
from .summary import Layer, Timetable

if TYPE_CHECKING:
    from .method import Method

ScoreOf = Callable[[Site], Tensor]


class Extra:
    """Something that composes with any method. Each hook is optional."""

    name: ClassVar[str] = "extra"

    def check(self, method: Method) -> None:
        """Raise where this extra does not go with a method."""

    def score(self, site: Site, score: Tensor) -> Tensor:
        """Change the score by which weights stay within a layer; how many stay is settled by the method's own."""
        return score

    def reserve(self, group: Group) -> Mapping[Site, Tensor]:
        """Positions that stay whatever their score, as masks by site."""
        return {}

    def before_step(self, site: Site) -> None:
        """Just before an optimizer step: `site.parameter.grad` may be changed in place."""

    def after_step(self, site: Site) -> None:
        """Just after an optimizer step: `site.weight` may be changed in place; zeros stay zero."""

    def after_step_dense(self, parameter: nn.Parameter, lr: float) -> None:
        """The same for a parameter that was stepped and is not pruned."""


@dataclass(eq=False)
class Group:
    """The weights one method works on, with their budget. The core owns it; a method reads it and sets masks."""

    method: Method
    sites: list[Site]
    total_steps: int
    seed: int
    extras: Sequence[Extra] = ()
    model: nn.Module | None = None
    data: Iterable[Any] | None = None  # batches (inputs, targets), for methods that need them
    loss_fn: Callable[..., Tensor] | None = None
    optimizers: Sequence[Optimizer] = ()
    state: dict[str, Any] = field(default_factory=dict)  # the method's own, beside that of its sites; saved
    step: int = 0  # the optimizer step this update belongs to, from 1
    final: int = 0  # budget at the end, in weights (or MACs)
    budget: int = 0  # the declared budget now
    retry: bool = False  # the last update met NaN or Inf and waits

    @property
    def total(self) -> int:
        return sum(site.numel * site.cost for site in self.sites)

    def spent(self) -> int:
        return sum(site.kept() * site.cost for site in self.sites)

    def updates(self) -> Sequence[int]:
        return self.method.updates(self.total_steps)

    def layers(self) -> list[Layer]:
        """What a person reads about each weight."""
        name = self.method.info.name
        return [Layer(s.name, tuple(s.shape), s.numel, s.kept(), name, s.rows, s.refills) for s in self.sites]

    def timetable(self) -> Timetable:
        """When masks are updated; `reached_at` needs the final budget, so not before `start`."""
        steps, every = self.updates(), getattr(self.method, "every", None)
        first, last = (steps[0], steps[-1]) if steps else (0, 0)
        reached = self.method.reached_at(self)
        return Timetable(self.method.info.name, len(steps), first, last, reached, self.total_steps, every)

    def update_number(self) -> int:
        """Which update this is, from 0. A retried update has the number of the one it stands for."""
        return bisect.bisect_right(self.updates(), self.step) - 1

    def scored(
        self,
        site: Site,
        score: ScoreOf,
        among: Tensor | None = None,
        without: Tensor | None = None,
        extras: Sequence[Extra] = (),
    ) -> Callable[[], Tensor]:
        """The score as selection consumes it: a tensor of its own; what is reserved comes first, not `among` last."""

        def make() -> Tensor:
            values = score(site)
            if any(values.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in site.tensors()):
                values = values.clone()
            for extra in extras:
                values = extra.score(site, values)
            if site.reserved is not None:
                values = values.masked_fill_(site.reserved, torch.inf)
            if among is not None:
                values = values.masked_fill_(~among, -torch.inf)
            return values if without is None else values.masked_fill_(without, -torch.inf)

        return make

    def keep(
        self, site: Site, score: ScoreOf, count: int, among: Tensor | None = None, without: Tensor | None = None
    ) -> Tensor:
        """Mask of the `count` best of a site by score; those `among` come first, those in `without` last.

        Extras speak when it is settled what stays, not when something is grown beside it.
        """
        extras = self.extras if without is None else ()
        return keep_largest(self.scored(site, score, among, without, extras), count, shards=site.shards)

    def counts(self, score: ScoreOf, budget: int) -> list[int]:
        """How many weights stay in each site.

        "global" compares the method's score over all sites and "lamp" the LAMP score of the active weights, active ones
        first in both; the other distributions follow from the shapes.
        """
        sizes = [site.numel for site in self.sites]
        if self.method.distribution == "lamp":
            score = lamp_score
        elif self.method.distribution != "global":
            return budgets.layer_counts([site.shape for site in self.sites], budget, self.method.distribution)
        costs = [site.cost for site in self.sites]
        macs = self.method.budget == "macs"
        active = [site.kept() for site in self.sites]
        reachable = min(budget, sum(a * c for a, c in zip(active, costs)))

        def per_cost(site: Site) -> Tensor:
            return score(site) / site.cost if macs else score(site)

        wide = any(site.weight.dtype == torch.float64 for site in self.sites)
        among = [site.mask if n < size else None for site, n, size in zip(self.sites, active, sizes)]
        cut = select([self.scored(site, per_cost, kept) for site, kept in zip(self.sites, among)], reachable, costs,
                     [site.shards for site in self.sites], torch.float64 if wide else torch.float32)  # fmt: skip
        counts = cut.counts
        if reachable < budget:  # fewer are active than may stay: the rest is shared out over what is free
            free = [n - c for n, c in zip(sizes, counts)]
            share = (budget - reachable) / sum(f * c for f, c in zip(free, costs))
            extra = budgets.largest_remainder([f * share for f in free], round(sum(free) * share), free)
            counts = [a + b for a, b in zip(counts, extra)]
        counts = budgets.at_least_one(counts)
        while macs and sum(n * c for n, c in zip(counts, costs)) > budget:  # what the floors cost too much
            counts[max(range(len(counts)), key=lambda i: (counts[i], -i))] -= 1
        return counts

    def run_update(self) -> None:
        """Let the method set its masks for `step`."""
        with self.own_precision():
            self._reserve()
            self.method.run_update(self)
        self._forget()

    def own_precision(self) -> torch.autocast:
        """That of the weights, where a user steps within autocast: scores and decompositions are not for half of it."""
        return torch.autocast(self.sites[0].weight.device.type, enabled=False)

    def _forget(self) -> None:
        for site in self.sites:
            site.scratch = None

    def _reserve(self) -> None:
        for site in self.sites:
            site.seed, site.step, site.reserved = self.seed, self.step, None
        for extra in self.extras:
            for site, mask in extra.reserve(self).items():
                site.reserved = mask if site.reserved is None else site.reserved | mask

    def start(self) -> None:
        """Masks at attach."""
        with self.own_precision():
            self._reserve()
            self.method.run_start(self)
        self._forget()

    def at_target(self) -> bool:
        """Exactly the final budget; with MACs, whose steps are coarse, the selection that was declared final."""
        spent = self.spent()
        return spent == self.final if self.method.budget == "weights" else self.budget == self.final >= spent

    @torch.no_grad()
    def project(self) -> None:
        """Cut the smallest weights at once so that the final budget holds."""
        self.method.before_projection(self)

        def magnitude(site: Site) -> Tensor:
            return site.weight.abs()

        for site, count in zip(self.sites, self.counts(magnitude, self.final)):
            site.mask.copy_(self.keep(site, magnitude, count, among=site.mask))
        self.budget = self.final


def lamp_score(site: Site) -> Tensor:
    """LAMP scores of a site's active weights (of the latents of a latent method), over all ranks that share it."""
    active = torch.where(site.mask, site.value, 0.0)
    return site.part(budgets.lamp_scores(site.whole(active)))
