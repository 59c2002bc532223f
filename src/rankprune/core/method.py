"""The bases of methods. A method defines only what is specific to it: a score, two scores, masks or a latent.

When masks are updated, and how many weights stay, is its `plan`. The step counter, exact selection, optimizer state and
checkpoints are in the core. The four bases below `Method` are alternatives: derive from one of them.
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
_RANDOM_SIZE = 0.1  # of the root mean square of a layer's active weights


class _FlatKeywords(ABCMeta):
    """Lets the constructor of a method take the settings of its plan too, as in `RPG(lam=4.0, every=100)`."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **settings: Any) -> Any:
            method = super().__call__(*args, **route_to_plan(cls, settings))
            check_choices(method)
            check_choices(method.plan)
            return method


@dataclass
class Method(metaclass=_FlatKeywords):
    """Base of all methods. Hyper-parameters are dataclass fields; what must be saved is in the state of the layers.

    Args:
        sparsity: The share of the weights (or MACs) to cut by the end.
        plan: When masks are updated and how many weights stay.
        distribution: How layers share the budget: "global", "uniform", "er", "erk" or "lamp".
        budget: What is counted: "weights" or "macs".
    """

    info: ClassVar[MethodInfo]
    form: ClassVar[type[MaskedForm]] = MaskedForm  # how weights are stored: masked, with dense state, as latents
    takes_zeros: ClassVar[bool] = False  # without a sparsity, the mask is that of the zeros already there
    grows: ClassVar[bool] = False  # weights outside the mask may enter it
    cost: ClassVar[TrainingCost | None] = None  # of training; None: derived by `MethodInfo.cost`

    sparsity: float | None = None
    _: KW_ONLY
    plan: Plan
    distribution: str = "global"
    budget: str = "weights"

    # -- settings ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise if settings cannot be combined; called at attach, before anything is changed."""

    def run(self, total_steps: int) -> Run:
        """What a plan needs to know about a training of this length with this method.

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
        """Set the masks at attach: dense, unless the plan starts below the dense budget.

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
        """Called by the core at attach: `start`, and what a family of methods does around it.

        Args:
            group: The layers that the method works on.
        """
        self.start(group)

    def run_update(self, group: Group) -> None:
        """Called by the core for an update: `update`, and what a family of methods does around it.

        Args:
            group: The layers that the method works on.
        """
        self.update(group)

    def before_projection(self, group: Group) -> None:
        """Called before `finalize(project=True)` prunes by magnitude: write into the weights what is to be compared.

        Args:
            group: The layers that the method works on.
        """

    # -- around an optimizer step -----------------------------------------------------------------------------------

    def replaces_optimizer_step(self) -> bool:
        """Whether a mask update replaces the optimizer step it falls on (RigL, RPG) or follows it."""
        return False

    def needs_closure(self, group: Group) -> bool:
        """Whether the next optimizer step must be given a closure.

        Args:
            group: The layers that the method works on.
        """
        return False

    def evaluate(self, group: Group, closure: Callable[[], Any]) -> Any:
        """Run the closure that `optimizer.step` was given, for the gradients that the step will use.

        Args:
            group: The layers that the method works on.
            closure: What `optimizer.step` was given.
        """
        return closure()

    def before_every(self) -> int:
        """How many steps lie between two calls of `before_step`; 0: it is never called."""
        return 0

    def before_step(self, layers: Sequence[PrunableLayer], group: Group, step: int) -> None:
        """Called before optimizer step `step` (from 1); `layer.add_gradient` adds to the gradient it will use.

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
    """The weights with the largest scores stay, as many as the plan says."""

    def score(self, layer: PrunableLayer) -> Tensor:
        """The score of each weight of a layer, larger for those that should stay.

        Args:
            layer: The layer.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a score(layer)")

    def update(self, group: Group) -> None:
        self.cut_to(group, group.scheduled())

    def cut_to(self, group: Group, budget: int) -> None:
        """Keep the active weights with the largest scores, as many as fit into the budget.

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

    In the order of the RigL and RPG papers: the budget sets the count of each layer, the `fraction` of it with the
    lowest drop scores leaves, and of all weights that are not kept those with the largest grow scores enter.

    Args:
        grow: The share of a layer that is exchanged at first, α of RigL and RPG; a number or a schedule.
        drop: "magnitude", or "relative": a weight is scored by its share of the magnitude of its two neurons (CHTs,
            Zhang et al. 2025).
        growth: "top": those with the largest grow scores enter; "sampled": they are drawn in proportion to it (CHTs).
        grow_init: What a grown weight starts at: "zero", "gradient" (-lr · g), "random" (small normal numbers) or
            "original" (its value at attach).
    """

    grows: ClassVar[bool] = True
    restarts: ClassVar[bool] = False  # a weight dropped and grown in one update loses its value and optimizer state

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
        """What growth is ranked by: the score, or random keys whose largest are a draw in proportion to the score.

        Args:
            layer: The layer.
        """
        score = self.grow_score(layer)
        return score if self.growth == "top" else score / -layer.random().to(score).log()  # Efraimidis & Spirakis 2006

    def fraction(self, group: Group) -> float:
        """Share of a layer to exchange: annealed along a cosine from `grow` to 0 at the end of updates.

        Args:
            group: The layers that the method works on.
        """
        return cosine(value_at(self.grow, group.step), 0.0, group.plan.end)(group.step)

    def layer_counts(self, group: Group) -> list[int]:
        """The count of each layer after the update: as before, or by drop scores over all layers if the budget varies.

        Args:
            group: The layers that the method works on.
        """
        if not group.plan.varies:
            return [layer.kept() for layer in group.layers]
        group.budget = group.scheduled()
        return group.counts(self.drop_score, group.budget)

    def start(self, group: Group) -> None:
        """A random mask, if the plan starts below the dense budget."""
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
        before = [] if self.grow_init == "zero" else [_idle(layer) for layer in group.layers]
        for layer in group.layers:
            _mark_explored(layer)  # masks may have been set by hand since the last update
        super().run_update(group)
        for layer in group.layers:
            _mark_explored(layer)
        for layer, stayed in zip(group.layers, before):
            grown = _idle(layer) & ~stayed
            layer.weight.copy_(torch.where(grown, _initial_values(layer, self.grow_init), layer.weight))

    def kept_of(self, group: Group, layer: PrunableLayer, count: int) -> Tensor:
        """The mask of a layer's weights that are not dropped.

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
                layer.apply_mask(layer.weight)  # what is cut here restarts from 0, even if it is grown at once
            layer.mask.copy_(self.kept_of(group, layer, count))
            if self.restarts:
                layer.apply_mask_to_weight_and_state()
            layer.mask.logical_or_(group.keep(layer, self.growth_key, count - layer.kept(), without=layer.mask))


def relative_importance(layer: PrunableLayer) -> Tensor:
    """|w| as a share of the sum of its row, plus as a share of that of its column: a neuron's last weights score high.

    Args:
        layer: The layer.
    """
    size = layer.weight.abs()  # (out, in, *kernel)
    rows = size.sum(dim=tuple(range(1, size.dim())), keepdim=True)  # (out, 1, …)
    columns = layer.shards.sum(size.sum(dim=(0, *range(2, size.dim())), keepdim=True))  # (1, in, 1, …)
    tiny = torch.finfo(size.dtype).tiny  # an empty row is 0 / tiny = 0
    return size / rows.clamp_min(tiny) + size / columns.clamp_min(tiny)


def _initial_values(layer: PrunableLayer, how: str) -> Tensor:
    """The values that weights of this layer start at when they are grown.

    gradient: one step of plain gradient descent, -lr · g. random: normal numbers with a tenth of the root mean square
    of the active weights. original: the value that the weight had at attach.
    """
    if how == "gradient":
        return layer.grad * -layer.lr
    if how == "original":
        return layer.state["original"]
    total = layer.weight.masked_fill(~layer.mask, 0.0).square().sum()
    rms = (layer.shards.sum(total) / max(layer.kept(), 1)).sqrt()
    return layer.normal("grown") * rms * _RANDOM_SIZE


def _idle(layer: PrunableLayer) -> Tensor:
    """Mask of the active weights that are exactly 0."""
    return layer.mask & (layer.weight == 0)


def _mark_explored(layer: PrunableLayer) -> None:
    """Add what is active now to the explored weights, for methods that start sparse."""
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
    """The optimizer trains a dense latent; during forward and backward the weight is its sparse image.

    The latent is `layer.state["latent"]`. By default the image is the latent under a mask of its largest entries,
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
        """The gradient of the latent from that of the weight. Must be linear in the gradient.

        Called as gradients arrive, before they are accumulated, averaged over processes, unscaled and clipped.

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
        """The latent whose image, without a mask, is this weight.

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
        """Set the latents from the weights.

        Args:
            group: The layers that the method works on.
        """
        for layer in group.layers:
            layer.state["latent"] = self.to_latent(layer.weight)

    def update(self, group: Group) -> None:
        self.keep_best(group, group.scheduled())

    def keep_best(self, group: Group, budget: int) -> float | None:
        """Set masks of the largest scores among all latents, as many as fit into the budget.

        Args:
            group: The layers that the method works on.
            budget: What they keep together, in weights (or MACs).

        Returns:
            The largest score that is not kept, if it was met on the way.
        """
        group.budget = budget
        return group.keep_best(self.score, budget)
