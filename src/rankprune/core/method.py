"""What a method is: the ladder Score -> DropGrow -> Masked -> Latent, and the group of weights it works on.

A method says only what is its own: a score, two scores, a mask or a reparametrisation. The clock, budgets, exact
selection, optimizer state and checkpoints are the core's. Pick the lowest rung that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from . import budget as budgets
from .group import Extra, Group
from .growth import GROW_INITS, GrowInit, explore, idle, initial_values
from .layer import PrunableLayer
from .plan import Gradual, Periodic
from .registry import MethodInfo, list_methods, method_info, register
from .schedules import Value, cosine, value_at

__all__ = [
    "DropGrow",
    "Extra",
    "Gradual",
    "Group",
    "Latent",
    "Masked",
    "Method",
    "MethodInfo",
    "Periodic",
    "PrunableLayer",
    "Score",
    "list_methods",
    "method_info",
    "register",
]


@dataclass
class Method:
    """Base of all methods: hyper-parameters are dataclass fields, state lives in the layers."""

    info: ClassVar[MethodInfo]
    dense_state: ClassVar[bool] = False  # gradients and optimizer state stay dense at every step (SNFS)
    takes_zeros: ClassVar[bool] = False  # without a sparsity it keeps the zeros that it finds
    cost: ClassVar[str] = "f"  # of an ordinary step as a share of a dense one, f that of a sparse forward pass

    sparsity: float | None = None
    distribution: str = field(default="global", kw_only=True)
    budget: str = field(default="weights", kw_only=True)  # or "macs"

    def updates(self, total_steps: int) -> Sequence[int]:
        """The optimizer steps (from 1) at which masks are updated."""
        return ()

    def resolved(self, total_steps: int) -> Method:
        """This method with the settings that follow from the number of steps filled in."""
        return self

    def replaces_optimizer_step(self) -> bool:
        """Whether a mask update takes the place of the optimizer step it falls on (RigL, RPG), or follows it."""
        return False

    def final_budget(self, group: Group) -> int:
        """The budget at the end, in weights (or MACs); called before `start`."""
        assert self.sparsity is not None
        return budgets.kept(group.total, self.sparsity)

    def start(self, group: Group) -> None:
        """Set the masks at attach; dense unless a method says otherwise."""

    def update(self, group: Group) -> None:
        """Set the masks of the update at `group.step`."""

    def run_start(self, group: Group) -> None:
        """What the core calls at attach: `start`, and what a family of methods does around it."""
        self.start(group)

    def run_update(self, group: Group) -> None:
        """What the core calls for an update: `update`, and what a family of methods does around it."""
        self.update(group)

    def reached_at(self, group: Group) -> int:
        """The step whose update reaches the final budget."""
        return group.updates()[-1] if group.updates() else 0

    def needs_closure(self, group: Group) -> bool:
        """Whether the next optimizer step must be given a closure."""
        return False

    def evaluate(self, group: Group, closure: Callable[[], Any]) -> Any:
        """Run the closure that an optimizer step was given; its gradients are what the step follows."""
        return closure()

    def before_projection(self, group: Group) -> None:
        """`finalize` is about to cut weights that are not at the target: leave in them what is to be cut."""

    def before_every(self) -> int:
        """Call `before_step` every so many steps; 0: never."""
        return 0

    def before_step(self, layers: Sequence[PrunableLayer], group: Group, step: int) -> None:
        """Called before optimizer step `step` (from 1); `layer.add_gradient` adds to the gradient it will follow."""

    def after_step(self, layer: PrunableLayer, group: Group) -> None:
        """Just after an optimizer step was taken, before the mask is applied: the weight may be changed in place."""


@dataclass
class Score(Method):
    """The weights with the largest score stay: at once, or along a schedule (see `Gradual`)."""

    at_once: ClassVar[bool] = True  # may be used by `prune`, without training: pruned at the start if no update fits

    def score(self, layer: PrunableLayer) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} needs a score(layer)")

    def start(self, group: Group) -> None:
        if not group.updates():
            self.update(group)

    def scheduled(self, group: Group) -> int:
        """The budget of the update at `group.step`."""
        return group.final

    def update(self, group: Group) -> None:
        self.cut_to(group, self.scheduled(group))

    def cut_to(self, group: Group, budget: int) -> None:
        """Keep the best of the active weights, by score, that fit into the budget."""
        group.budget = budget
        for layer, count in zip(group.layers, group.counts(self.score, budget)):
            layer.mask.copy_(group.keep(layer, self.score, count, among=layer.mask))


@dataclass
class DropGrow(Periodic, Method):
    """Drop the worst active weights of each layer and grow as many elsewhere: two scores and a fraction.

    In the order of the RigL and RPG papers: each layer's count is set (by the budget), the `fraction` of it with the
    lowest drop score leaves, and the best by grow score among all that is not kept enters. What was out enters at 0,
    or where `grow_init` says: "gradient" (-lr · g), "random" (small normal numbers) or "original" (as at attach).
    Two options stem from CHTs (Zhang et al. 2025): `drop="relative"` scores a weight by its share of what its neurons
    have, and `growth="sampled"` draws what enters with a chance in proportion to the grow score.
    """

    restarts: ClassVar[bool] = False  # a weight cut and grown in one update loses its value and its optimizer state

    grow: Value = field(default=0.3, kw_only=True)
    drop: Literal["magnitude", "relative"] = field(default="magnitude", kw_only=True)
    growth: Literal["top", "sampled"] = field(default="top", kw_only=True)
    grow_init: GrowInit = field(default="zero", kw_only=True)

    def updates(self, total_steps: int) -> Sequence[int]:
        choices = {"drop": ("magnitude", "relative"), "growth": ("top", "sampled"), "grow_init": GROW_INITS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: use {' or '.join(map(repr, allowed))}")
        if not callable(self.grow) and not (isinstance(self.grow, (int, float)) and 0.0 <= self.grow <= 1.0):
            raise ValueError(f"grow={self.grow!r} is not a share of a layer: give 0 to 1, such as 0.3, or a schedule")
        return super().updates(total_steps)

    def default_end(self, every: int, total_steps: int) -> int:
        return total_steps  # a weight grown at the last step would stay at 0

    def reached_at(self, group: Group) -> int:
        return 0  # it starts there, unless it is `Gradual`

    def shortest_period(self) -> int:
        """An update that takes the place of an optimizer step must leave enough of them to train the weights."""
        if not self.replaces_optimizer_step():
            return 1
        return 2 if isinstance(self, Gradual) else 5  # a budget that falls needs the updates more

    def drop_score(self, layer: PrunableLayer) -> Tensor:
        return layer.weight.abs() if self.drop == "magnitude" else relative_importance(layer)

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} needs a grow_score(layer)")

    def growth_key(self, layer: PrunableLayer) -> Tensor:
        """What growth is ranked by: the score, or a key whose largest are a draw without replacement by the score."""
        score = self.grow_score(layer)
        return score if self.growth == "top" else score / -layer.random().to(score).log()  # Efraimidis & Spirakis 2006

    def fraction(self, group: Group) -> float:
        """Share of a layer to exchange: cosine-annealed from `grow` to 0 at the end of updates."""
        return cosine(value_at(self.grow, group.step), 0.0, self.end(group.total_steps))(group.step)

    def layer_counts(self, group: Group) -> list[int]:
        """What each layer has after the update: unchanged, or for a `Gradual` method what drop scores over all say."""
        if not isinstance(self, Gradual):
            return [layer.kept() for layer in group.layers]
        group.budget = self.scheduled(group)
        return group.counts(self.drop_score, group.budget)

    def start(self, group: Group) -> None:
        """A random mask with the final budget."""
        group.budget = group.final
        for layer, count in zip(group.layers, group.counts(PrunableLayer.random, group.budget)):
            layer.mask.copy_(group.keep(layer, PrunableLayer.random, count))

    def run_start(self, group: Group) -> None:
        if self.grow_init == "original":
            for layer in group.layers:
                layer.state["original"] = layer.weight.clone()
        super().run_start(group)
        if group.spent() < group.total:  # from a dense start all weights are explored
            for layer in group.layers:
                layer.state["explored"] = layer.mask.clone()

    def run_update(self, group: Group) -> None:
        before = [] if self.grow_init == "zero" else [idle(layer) for layer in group.layers]
        for layer in group.layers:
            explore(layer)  # masks may have been set by hand since the last update
        super().run_update(group)
        for layer in group.layers:
            explore(layer)
        for layer, stayed in zip(group.layers, before):
            grown = idle(layer) & ~stayed
            layer.weight.copy_(torch.where(grown, initial_values(layer, self.grow_init), layer.weight))

    def kept_of(self, group: Group, layer: PrunableLayer, count: int) -> Tensor:
        """The part of a layer that certainly stays."""
        return group.keep(layer, self.drop_score, count - int(count * self.fraction(group)), among=layer.mask)

    def update(self, group: Group) -> None:
        for layer, count in zip(group.layers, self.layer_counts(group)):
            if count < layer.kept():
                layer.mask.copy_(group.keep(layer, self.drop_score, count, among=layer.mask))
                layer.apply_mask(layer.weight)  # what falls out here restarts from 0, even if it is grown at once
            layer.mask.copy_(self.kept_of(group, layer, count))
            if self.restarts:
                layer.apply_mask_to_weight_and_state()
            layer.mask.logical_or_(group.keep(layer, self.growth_key, count - layer.kept(), without=layer.mask))


def relative_importance(layer: PrunableLayer) -> Tensor:
    """|w| as a share of its row's sum plus as a share of its column's: the last weights of a neuron score high."""
    size = layer.weight.abs()
    rows = size.sum(dim=tuple(range(1, size.dim())), keepdim=True)
    columns = size.sum(dim=(0, *range(2, size.dim())), keepdim=True)
    if layer.shards:
        columns = layer.shards.sum(columns)
    tiny = torch.finfo(size.dtype).tiny  # an empty row is 0 / tiny = 0
    return size / rows.clamp_min(tiny) + size / columns.clamp_min(tiny)


@dataclass
class Masked(Method):
    """Full control: return a mask for each layer."""

    def masks(self, group: Group) -> Sequence[Tensor]:
        raise NotImplementedError(f"{type(self).__name__} needs masks(group)")

    def update(self, group: Group) -> None:
        for layer, mask in zip(group.layers, self.masks(group)):
            layer.mask.copy_(mask)
        group.budget = group.spent()


@dataclass
class Latent(Method):
    """The optimizer trains a dense latent; the weight holds its sparse image through forward and backward.

    The latent lives in `layer.state["latent"]`. By default the image is the latent under a mask of its largest entries,
    chosen at every step along the schedule, and the gradient passes straight through.
    """

    cost: ClassVar[str] = "(2f + 1)/3"  # the gradient of the weights is dense
    trains_cut: ClassVar[bool] = True  # whether a latent outside the mask gets a gradient

    def updates(self, total_steps: int) -> Sequence[int]:
        return range(1, total_steps + 1)

    def score(self, layer: PrunableLayer) -> Tensor:
        return layer.state["latent"].abs()

    def effective(self, layer: PrunableLayer) -> Tensor:
        """The weight the network sees, zero outside `layer.mask`."""
        return torch.where(layer.mask, layer.state["latent"], 0.0)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        """The latent's gradient from the weight's, or from a part of it: linear, and a function of both alone.

        It is called as gradients arrive, before they are added up, averaged over processes, unscaled and clipped.
        """
        return grad

    def note_grad(self, layer: PrunableLayer) -> None:
        """Just before an optimizer step: `layer.grad` is the latent's gradient as the step will use it."""

    def to_latent(self, weight: Tensor) -> Tensor:
        """The latent whose dense image is this weight."""
        return weight.clone()

    def follow(self, layer: PrunableLayer) -> None:
        """Start from the layer's weight, which someone else has written."""
        layer.state["latent"].copy_(self.to_latent(layer.weight))

    def scheduled(self, group: Group) -> int:
        return group.final

    def update(self, group: Group) -> None:
        self.keep_best(group, self.scheduled(group))

    def keep_best(self, group: Group, budget: int) -> None:
        """Masks of the best by score among all latents, within this budget."""
        group.budget = budget
        for layer in group.layers:
            layer.mask.fill_(True)  # a latent that was out may return
        for layer, count in zip(group.layers, group.counts(self.score, group.budget)):
            layer.mask.copy_(group.keep(layer, self.score, count))

    def start(self, group: Group) -> None:
        for layer in group.layers:
            layer.state["latent"] = self.to_latent(layer.weight)
