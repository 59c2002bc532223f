"""What a method is. A method says only what is its own: a score, two scores, masks or a reparametrisation.

When masks are updated, and how many weights stay, is its `plan`. The clock, exact selection, optimizer state and
checkpoints are the core's. The bases stand side by side: derive from the one that fits.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from . import budget as budgets
from .cost import DenseGradient, TrainingCost
from .form import LatentForm, MaskedForm
from .group import Extra, Group
from .layer import PrunableLayer
from .plan import EveryStep, Periodic, Plan, Run
from .registry import MethodInfo, list_methods, method_info, register
from .schedules import Value, cosine, value_at
from .settings import check_choices, route_to_plan

__all__ = [
    "DropGrow",
    "Extra",
    "Group",
    "Latent",
    "Masked",
    "Method",
    "MethodInfo",
    "PrunableLayer",
    "Score",
    "list_methods",
    "method_info",
    "register",
]


GrowInit = Literal["zero", "gradient", "random", "original"]
_SMALL = 0.1  # of the root mean square of a layer's active weights


class _FlatKeywords(ABCMeta):
    """Lets a method be made with the settings of its plan beside its own, `RPG(lam=4.0, every=100)`; checks them."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **settings: Any) -> Any:
            made = super().__call__(*args, **route_to_plan(cls, settings))
            check_choices(made)
            check_choices(made.plan)
            return made


@dataclass
class Method(metaclass=_FlatKeywords):
    """Base of all methods: hyper-parameters are dataclass fields, what lasts lives in the layers' state.

    Args:
        sparsity: The share of the weights (or MACs) to cut by the end.
        plan: When masks are updated and how many weights stay.
        distribution: How layers share the budget: "global", "uniform", "er", "erk" or "lamp".
        budget: What is counted: "weights" or "macs".
    """

    info: ClassVar[MethodInfo]
    form: ClassVar[type[MaskedForm]] = MaskedForm  # how weights are held: masked, with dense state (SNFS), as latents
    takes_zeros: ClassVar[bool] = False  # without a sparsity it keeps the zeros that it finds
    grows: ClassVar[bool] = False  # weights outside the mask may enter it
    cost: ClassVar[TrainingCost | None] = None  # of training; None: as `MethodInfo.cost` derives it

    sparsity: float | None = None
    _: KW_ONLY
    plan: Plan
    distribution: str = "global"
    budget: str = "weights"

    # -- settings ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise where settings do not go together; called at attach, before anything is touched."""

    def run(self, total_steps: int) -> Run:
        """What the plan must know of a training of this length with this method.

        Args:
            total_steps: Optimizer steps of the training.
        """
        return Run(total_steps, self.sparsity, self.grows, self.replaces_optimizer_step())

    def updates(self, total_steps: int) -> Sequence[int]:
        """The optimizer steps (from 1) at which masks are updated.

        Args:
            total_steps: Optimizer steps of the training.
        """
        return self.plan.steps(self.run(total_steps))

    def final_budget(self, group: Group) -> int:
        """The budget at the end, in weights (or MACs); called before `start`.

        Args:
            group: The layers that the method works on.
        """
        assert self.sparsity is not None
        return budgets.kept(group.total, self.sparsity)

    def reached_at(self, group: Group) -> int:
        """The step whose update reaches the final budget.

        Args:
            group: The layers that the method works on.
        """
        return group.plan.reached

    # -- masks ------------------------------------------------------------------------------------------------------

    def start(self, group: Group) -> None:
        """Set the masks at attach: dense, unless the plan begins with a cut.

        Args:
            group: The layers that the method works on.
        """
        if group.scheduled() < group.total:
            self.update(group)

    def update(self, group: Group) -> None:
        """Set the masks of the update at `group.step`.

        Args:
            group: The layers that the method works on.
        """

    def run_start(self, group: Group) -> None:
        """What the core calls at attach: `start`, and what a family of methods does around it.

        Args:
            group: The layers that the method works on.
        """
        self.start(group)

    def run_update(self, group: Group) -> None:
        """What the core calls for an update: `update`, and what a family of methods does around it.

        Args:
            group: The layers that the method works on.
        """
        self.update(group)

    def before_projection(self, group: Group) -> None:
        """`finalize` is about to cut weights that are not at the target: leave in them what is to be cut.

        Args:
            group: The layers that the method works on.
        """

    # -- around an optimizer step -----------------------------------------------------------------------------------

    def replaces_optimizer_step(self) -> bool:
        """Whether a mask update takes the place of the optimizer step it falls on (RigL, RPG), or follows it."""
        return False

    def needs_closure(self, group: Group) -> bool:
        """Whether the next optimizer step must be given a closure.

        Args:
            group: The layers that the method works on.
        """
        return False

    def evaluate(self, group: Group, closure: Callable[[], Any]) -> Any:
        """Run the closure that an optimizer step was given; its gradients are what the step follows.

        Args:
            group: The layers that the method works on.
            closure: What `optimizer.step` was given.
        """
        return closure()

    def before_every(self) -> int:
        """Call `before_step` every so many steps; 0: never."""
        return 0

    def before_step(self, layers: Sequence[PrunableLayer], group: Group, step: int) -> None:
        """Called before optimizer step `step` (from 1); `layer.add_gradient` adds to the gradient it will follow.

        Args:
            layers: Those of the group's layers that the optimizer steps.
            group: The layers that the method works on.
            step: The optimizer step, from 1.
        """

    def after_step(self, layer: PrunableLayer, group: Group) -> None:
        """Called after an optimizer step, before the mask is applied: the weight may be changed in place.

        Args:
            layer: A layer that was stepped.
            group: The layers that the method works on.
        """


@dataclass
class Score(Method):
    """The weights with the largest score stay, as many as the plan says."""

    def score(self, layer: PrunableLayer) -> Tensor:
        """The score of each weight of a layer, larger for those that should stay.

        Args:
            layer: The layer.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a score(layer)")

    def update(self, group: Group) -> None:
        self.cut_to(group, group.scheduled())

    def cut_to(self, group: Group, budget: int) -> None:
        """Keep the best of the active weights, by score, that fit into the budget.

        Args:
            group: The layers that the method works on.
            budget: What they keep together, in weights (or MACs).
        """
        group.budget = budget
        for layer, count in zip(group.layers, group.counts(self.score, budget)):
            layer.mask.copy_(group.keep(layer, self.score, count, among=layer.mask))


@dataclass(kw_only=True)
class DropGrow(Method):
    """Drop the worst active weights of each layer and grow as many elsewhere: two scores and a fraction.

    In the order of the RigL and RPG papers: each layer's count is set (by the budget), the `fraction` of it with the
    lowest drop score leaves, and the best by grow score among all that is not kept enters.

    Args:
        grow: The share of a layer that is exchanged at first, α of RigL and RPG; a number or a schedule.
        drop: "magnitude", or "relative": a weight is scored by its share of what its neurons have (CHTs, Zhang et al.
            2025).
        growth: "top": the best by grow score enter; "sampled": they are drawn with a chance in proportion to it (CHTs).
        grow_init: What a grown weight starts at: "zero", "gradient" (-lr · g), "random" (small normal numbers) or
            "original" (as at attach).
    """

    grows: ClassVar[bool] = True
    restarts: ClassVar[bool] = False  # a weight cut and grown in one update loses its value and its optimizer state

    plan: Plan = Periodic()
    grow: Value = 0.3
    drop: Literal["magnitude", "relative"] = "magnitude"
    growth: Literal["top", "sampled"] = "top"
    grow_init: GrowInit = "zero"

    def check(self) -> None:
        if not callable(self.grow) and not (isinstance(self.grow, (int, float)) and 0.0 <= self.grow <= 1.0):
            raise ValueError(f"grow={self.grow!r} is not a share of a layer: give 0 to 1, such as 0.3, or a schedule")

    def drop_score(self, layer: PrunableLayer) -> Tensor:
        """The score by which active weights stay.

        Args:
            layer: The layer.
        """
        return layer.weight.abs() if self.drop == "magnitude" else relative_importance(layer)

    def grow_score(self, layer: PrunableLayer) -> Tensor:
        """The score by which weights outside the mask enter it.

        Args:
            layer: The layer, with its dense gradient.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a grow_score(layer)")

    def growth_key(self, layer: PrunableLayer) -> Tensor:
        """What growth is ranked by: the score, or a key whose largest are a draw without replacement by the score.

        Args:
            layer: The layer.
        """
        score = self.grow_score(layer)
        return score if self.growth == "top" else score / -layer.random().to(score).log()  # Efraimidis & Spirakis 2006

    def fraction(self, group: Group) -> float:
        """Share of a layer to exchange: cosine-annealed from `grow` to 0 at the end of updates.

        Args:
            group: The layers that the method works on.
        """
        return cosine(value_at(self.grow, group.step), 0.0, group.plan.end)(group.step)

    def layer_counts(self, group: Group) -> list[int]:
        """What each layer has after the update: as before, or where the budget varies what drop scores over all say.

        Args:
            group: The layers that the method works on.
        """
        if not group.plan.varies:
            return [layer.kept() for layer in group.layers]
        group.budget = group.scheduled()
        return group.counts(self.drop_score, group.budget)

    def start(self, group: Group) -> None:
        """A random mask, where the plan begins below the dense budget."""
        if group.scheduled() < group.total:
            group.budget = group.scheduled()
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
        """The part of a layer that certainly stays.

        Args:
            group: The layers that the method works on.
            layer: One of them.
            count: How many weights it has after the update.
        """
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
    """|w| as a share of its row's sum plus as a share of its column's: the last weights of a neuron score high.

    Args:
        layer: The layer.
    """
    size = layer.weight.abs()
    rows = size.sum(dim=tuple(range(1, size.dim())), keepdim=True)
    columns = layer.shards.sum(size.sum(dim=(0, *range(2, size.dim())), keepdim=True))
    tiny = torch.finfo(size.dtype).tiny  # an empty row is 0 / tiny = 0
    return size / rows.clamp_min(tiny) + size / columns.clamp_min(tiny)


def initial_values(layer: PrunableLayer, how: str) -> Tensor:
    """What a weight of this layer starts at when it is grown.

    gradient: one step of plain gradient descent, -lr · g. random: normal numbers with a tenth of the active weights'
    root mean square. original: the value that the weight had at attach.

    Args:
        layer: The layer.
        how: "gradient", "original" or "random".
    """
    if how == "gradient":
        return layer.grad * -layer.lr
    if how == "original":
        return layer.state["original"]
    total = layer.weight.masked_fill(~layer.mask, 0.0).square().sum()
    rms = (layer.shards.sum(total) / max(layer.kept(), 1)).sqrt()
    return layer.normal("grown") * rms * _SMALL


def idle(layer: PrunableLayer) -> Tensor:
    """Active weights that are exactly 0.

    Args:
        layer: The layer.
    """
    return layer.mask & (layer.weight == 0)


def explore(layer: PrunableLayer) -> None:
    """Remember what is active now as explored, where that is kept at all.

    Args:
        layer: The layer.
    """
    if "explored" in layer.state:
        layer.state["explored"].logical_or_(layer.mask)


@dataclass
class Masked(Method):
    """Full control: return a mask for each layer."""

    def masks(self, group: Group) -> Sequence[Tensor]:
        """The mask of each layer, in the order of `group.layers`.

        Args:
            group: The layers that the method works on.
        """
        raise NotImplementedError(f"{type(self).__name__} needs masks(group)")

    def update(self, group: Group) -> None:
        for layer, mask in zip(group.layers, self.masks(group)):
            layer.mask.copy_(mask)
        group.budget = group.spent()


@dataclass(kw_only=True)
class Latent(Method):
    """The optimizer trains a dense latent; the weight holds its sparse image through forward and backward.

    The latent lives in `layer.state["latent"]`. By default the image is the latent under a mask of its largest entries,
    chosen at every step, and the gradient passes straight through.
    """

    form: ClassVar[type[MaskedForm]] = LatentForm
    cost: ClassVar[TrainingCost | None] = DenseGradient()
    trains_cut: ClassVar[bool] = True  # whether a latent outside the mask gets a gradient

    plan: Plan = EveryStep()

    def score(self, layer: PrunableLayer) -> Tensor:
        """The score of each latent of a layer, larger for those that should stay.

        Args:
            layer: The layer.
        """
        return layer.state["latent"].abs()

    def effective(self, layer: PrunableLayer) -> Tensor:
        """The weight the network sees, zero outside `layer.mask`.

        Args:
            layer: The layer.
        """
        return torch.where(layer.mask, layer.state["latent"], 0.0)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        """The latent's gradient from the weight's, or from a part of it: linear, and a function of both alone.

        It is called as gradients arrive, before they are added up, averaged over processes, unscaled and clipped.

        Args:
            layer: The layer.
            grad: The gradient of its weight.
        """
        return grad

    def note_grad(self, layer: PrunableLayer) -> None:
        """Called before an optimizer step: `layer.grad` is the latent's gradient as the step will use it.

        Args:
            layer: The layer.
        """

    def to_latent(self, weight: Tensor) -> Tensor:
        """The latent whose dense image is this weight.

        Args:
            weight: The weight.
        """
        return weight.clone()

    def reset_latent(self, layer: PrunableLayer) -> None:
        """Compute the latent from the layer's weight again, after other code has written to the weight.

        Args:
            layer: The layer.
        """
        layer.state["latent"].copy_(self.to_latent(layer.weight))

    def start(self, group: Group) -> None:
        self.make_latents(group)
        super().start(group)

    def make_latents(self, group: Group) -> None:
        """Latents whose images are the weights as they are.

        Args:
            group: The layers that the method works on.
        """
        for layer in group.layers:
            layer.state["latent"] = self.to_latent(layer.weight)

    def update(self, group: Group) -> None:
        self.keep_best(group, group.scheduled())

    def keep_best(self, group: Group, budget: int) -> None:
        """Masks of the best by score among all latents, within this budget.

        Args:
            group: The layers that the method works on.
            budget: What they keep together, in weights (or MACs).
        """
        group.budget = budget
        for layer in group.layers:
            layer.mask.fill_(True)  # a latent that was out may return
        for layer, count in zip(group.layers, group.counts(self.score, group.budget)):
            layer.mask.copy_(group.keep(layer, self.score, count))
