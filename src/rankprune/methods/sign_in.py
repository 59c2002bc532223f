"""Sign-In (Gadhikar et al. 2025): a product of two factors for every weight, which lets its sign flip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankprune.core.clock import skip_flag
from rankprune.core.cost import TrainingCost
from rankprune.core.keywords import of_plan, plan_keywords
from rankprune.core.method import Group, Latent, PrunableLayer, register
from rankprune.core.optimizers import similar
from rankprune.core.plan import Plan, Run
from rankprune.core.schedules import check_count, evenly_spaced

_MOMENT = "factor/"  # before the names of the optimizer's state for the factor m, in a layer's state


@dataclass(frozen=True, kw_only=True)
class Resets(Plan):
    """The steps, at even distances, at which the factors are split anew; the mask stands.

    Args:
        resets: How many times.
    """

    varies: ClassVar[bool] = False
    resets: int = 100

    def __post_init__(self) -> None:
        check_count(self.resets, "resets", "resets")

    def steps(self, run: Run) -> Sequence[int]:
        return evenly_spaced(0, run.total_steps, self.resets)

    def budget(self, done: int, run: Run) -> int:
        return run.final


@plan_keywords(kw_only=True)
class ResetsKeywords:
    """The keywords of `Resets`."""

    resets: int = of_plan()


@register(
    "sign_in", paper="Gadhikar et al. 2025, arXiv:2504.12801", family="latent", moves=False, needs=("grad",),
)  # fmt: skip
@dataclass(kw_only=True)
class SignIn(Latent, ResetsKeywords):
    """Train a fixed sparse mask by two factors, θ = m ⊙ w, whose scale is set anew again and again.

    With m² - w² = β, gradient flow on the factors is dθ = -√(4θ² + β²) ∇L dt: weights pass through 0, where they would
    stop at β = 0, and large ones are fast. The authors prove that it finds signs that plain gradient flow does not.
    Noise and weight decay shrink β; `resets` times, at even distances, the factors are split anew with the θ they have.
    Both factors follow the rule of the attached optimizer. The mask is drawn at random, by default with ERK counts;
    without a sparsity it is that of the zeros that are there, of `rankprune.prune(model, "synflow", …)` say.

    Args:
        beta: β = m² - w², to which the factors are set at each reset.
    """

    takes_zeros: ClassVar[bool] = True
    trains_cut: ClassVar[bool] = False
    cost: ClassVar[TrainingCost | None] = TrainingCost()

    distribution: str = "erk"
    beta: float = 1.0
    plan: Plan = Resets()
    _twins: dict[PrunableLayer, Optimizer] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.beta > 0.0:
            raise ValueError(f"beta={self.beta!r} lets no sign flip: give a number above 0, such as 1")

    def final_budget(self, group: Group) -> int:
        if self.sparsity is not None:
            return super().final_budget(group)
        for layer in group.layers:
            layer.mask.copy_(layer.weight != 0)
        return group.spent()

    def start(self, group: Group) -> None:
        group.budget = group.final
        if self.sparsity is not None:
            for layer, count in zip(group.layers, group.counts(PrunableLayer.random, group.final)):
                layer.mask.copy_(group.keep(layer, PrunableLayer.random, count))
        for layer in group.layers:
            layer.state["factor"], layer.state["latent"] = split(torch.where(layer.mask, layer.weight, 0.0), self.beta)
            self._twin(layer)

    def update(self, group: Group) -> None:
        for layer in group.layers:
            layer.state["factor"], layer.state["latent"] = split(self.effective(layer), self.beta)

    def reset_latent(self, layer: PrunableLayer) -> None:
        layer.state["factor"], layer.state["latent"] = split(torch.where(layer.mask, layer.weight, 0.0), self.beta)

    def effective(self, layer: PrunableLayer) -> Tensor:
        return torch.where(layer.mask, layer.state["factor"] * layer.state["latent"], 0.0)

    def latent_grad(self, layer: PrunableLayer, grad: Tensor) -> Tensor:
        return torch.where(layer.mask, grad * layer.state["factor"], 0.0)

    def note_grad(self, layer: PrunableLayer) -> None:
        """∂L/∂m = w ∂L/∂θ, of which `layer.grad` has m ∂L/∂θ."""
        factor, twin = layer.state["factor"], self._twin(layer)
        (parameter,) = twin.param_groups[0]["params"]
        parameter.grad = None
        if layer.parameter.grad is not None:
            parameter.grad = torch.where(factor != 0, layer.grad * layer.state["latent"] / factor, 0.0)

    def after_step(self, layer: PrunableLayer, group: Group) -> None:
        """The step of m, by the same rule as that of w just taken."""
        assert layer.optimizer is not None
        flag = skip_flag(layer.optimizer)
        if flag is not None and bool(flag):
            return
        twin = self._twin(layer)
        (parameter,) = twin.param_groups[0]["params"]
        settings = layer.optimizer.param_groups[layer.param_group]
        twin.param_groups[0].update({key: value for key, value in settings.items() if key != "params"})
        with torch.no_grad():
            parameter.copy_(layer.state["factor"])
        twin.step()
        layer.state["factor"] = parameter.detach().clone()
        layer.state |= {_MOMENT + key: value for key, value in twin.state[parameter].items() if value is not None}

    def _twin(self, layer: PrunableLayer) -> Optimizer:
        """An optimizer like the layer's own, for its factor, with the state that was saved with the layer."""
        if layer not in self._twins:
            assert layer.optimizer is not None
            try:
                self._twins[layer] = similar(layer.optimizer, nn.Parameter(layer.state["factor"].clone()))
            except Exception as error:
                name = type(layer.optimizer).__name__
                raise ValueError(f"sign_in cannot make a second {name} for its factors: use SGD or AdamW") from error
        twin = self._twins[layer]
        (parameter,) = twin.param_groups[0]["params"]
        saved = {key.removeprefix(_MOMENT): value for key, value in layer.state.items() if key.startswith(_MOMENT)}
        if parameter.device != layer.weight.device or parameter.dtype != layer.weight.dtype:
            parameter.data = parameter.data.to(layer.weight)
        twin.state[parameter] = saved
        return twin


def split(theta: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """The factors m > 0 and w with m w = θ and m² - w² = β.

    Args:
        theta: The weights θ.
        beta: β, above 0.
    """
    m = ((beta + (beta**2 + 4 * theta.square()).sqrt()) / 2).sqrt()
    return m, theta / m
