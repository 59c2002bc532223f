"""Optimizers, and the learning rate as a pure function of the step."""

from __future__ import annotations

from torch import nn
from torch.optim import SGD, AdamW
from torch.optim import Optimizer as TorchOptimizer

from rankprune.core.schedules import cosine, linear
from rankprune.lab.recipes.schema import Optimizer, Recipe


def build_optimizer(model: nn.Module, settings: Optimizer) -> TorchOptimizer:
    """Create the optimizer of a recipe.

    Args:
        model: The model.
        settings: The recipe's section `optimizer`.

    Returns:
        SGD or AdamW.
    """
    groups = parameter_groups(model, settings)
    if settings.name == "adamw":
        return AdamW(groups, lr=settings.lr, betas=settings.betas)
    return SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)


def parameter_groups(model: nn.Module, settings: Optimizer) -> list[dict[str, object]]:
    """Group the parameters by weight decay.

    Args:
        model: The model.
        settings: The recipe's section `optimizer`. Without `decay_norm_and_bias`, vectors (norms and biases) and what a
            timm model lists in `no_weight_decay` have none.

    Returns:
        Parameter groups of torch.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = list(named.values())
    if settings.decay_norm_and_bias:
        return [{"params": parameters, "weight_decay": settings.weight_decay}]
    spared = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()  # type: ignore[operator]
    decayed = [name for name, p in named.items() if p.ndim > 1 and name not in spared]
    return [
        {"params": [named[name] for name in decayed], "weight_decay": settings.weight_decay},
        {"params": [p for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    ]


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step: linear warm-up, then the schedule over the rest of the run.

    Args:
        recipe: The recipe.
        step: The optimizer step, from 0.
        steps_per_epoch: Optimizer steps per epoch.

    Returns:
        The learning rate.
    """
    schedule, peak = recipe.schedule, recipe.optimizer.lr
    warmup, total = round(schedule.warmup_epochs * steps_per_epoch), recipe.epochs * steps_per_epoch
    if step < warmup:
        return linear(0.0, peak, warmup)(step + 1)
    if schedule.name == "constant":
        return peak
    if schedule.name == "step":
        at = step * schedule.cycles % total
        # 0.55 * 100 is 55.00000000000001 in floating point, but 55 is meant.
        return peak * schedule.gamma ** sum(at >= milestone * total - 1e-6 for milestone in schedule.milestones)
    rest = total - warmup
    return cosine(peak, schedule.min_lr, rest)((step - warmup) * schedule.cycles % rest)


def set_learning_rate(optimizer: TorchOptimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups.

    Args:
        optimizer: The optimizer.
        rate: The learning rate.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
