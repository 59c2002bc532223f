"""The public interface: `attach`, and the `Sparsifier` it returns. What happens around a step is in `step.py`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankprune._util import percent
from rankprune.openmp import limit_spinning_late

from . import checkpoint as _checkpoint
from .attach import Sources, build_groups, make_report
from .layer import all_finite, canonical
from .method import Extra, Group, Method
from .optimizers import averages, shows_average, unwrap
from .shards import local
from .step import StepHooks
from .summary import Report, Timetable, refill_warning

__all__ = ["NotAtTarget", "Sparsifier", "attach"]


class NotAtTarget(RuntimeError):
    """The masks are not at the sparsity that was asked for."""


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: str | Method | Mapping[str, Any],
    *,
    sparsity: float | None = None,
    total_steps: int,
    dense: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
    include: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
    seed: int = 0,
    extras: Sequence[Extra] = (),
    example: Any = None,
    data: Iterable[Any] | None = None,
    loss_fn: Callable[..., Tensor] | None = None,
    **hyper: Any,
) -> Sparsifier:
    """Make `optimizer.step()` prune the model; the training loop stays as it is.

    Args:
        model: The network. Its `state_dict` keys do not change.
        optimizer: The optimizer whose `step()` is called, or several of them.
        method: A name of `list_methods()`, with extras as in "rpg+ham"; a configured method such as
            `rp.methods.RPG(lam=4.0)`; or a mapping of globs to methods, where the first match wins and each may have
            a sparsity of its own.
        sparsity: The share of the prunable weights to cut by the end: 0.98 leaves 2 %.
        total_steps: Optimizer steps of the whole training.
        dense: Weights to leave dense, by glob or by module type.
        include: Weights to prune that are not pruned by default (embeddings, bare parameters), by glob or module type.
        seed: Of random masks and growth; the same on every rank.
        extras: What composes with any method: objects of `rankprune.extras`.
        example: An input of the model, needed for `budget="macs"` only.
        data: Batches (inputs, targets), for methods whose `needs` name "data".
        loss_fn: `loss_fn(outputs, targets)`, for methods whose `needs` name "loss".
        **hyper: Hyper-parameters of the method and of its plan (`every`, `prune_end`, …), or a mapping for one method
            or extra by name: `ham={"alpha": 100}`.

    Returns:
        The sparsifier: masks, step, sparsity, `summary()`, and `finalize()` when training is over.

    Raises:
        ValueError: A setting is wrong; the message names it and the way out. Nothing has been changed then.

    Example:
        sp = rp.attach(model, optimizer, "rpg", sparsity=0.98, total_steps=10_000)
        # the usual training loop
        print(sp.finalize())
    """
    limit_spinning_late()
    sources = Sources(model, data, loss_fn, example)
    groups, left_out = build_groups(sources, method, sparsity, total_steps, dense, seed, extras, hyper, include)
    if standardised := [layer.name for group in groups for layer in group.layers if layer.refills]:
        warnings.warn(refill_warning(standardised), stacklevel=2)
    optimizers = [unwrap(o) for o in (optimizer if isinstance(optimizer, (list, tuple)) else [optimizer])]
    return Sparsifier(optimizers, groups, left_out)


class Sparsifier:
    """What `attach` returns: the masks of a model in training.

    Attributes:
        optimizers: The optimizers it is attached to.
        groups: The layers of each method, with their budgets.
        layers: All prunable layers.
        left_out: The reason why each other parameter is left out, by name.
    """

    def __init__(self, optimizers: list[Optimizer], groups: list[Group], left_out: Mapping[str, str]) -> None:
        self.optimizers, self.groups = optimizers, groups
        self.layers = [layer for group in groups for layer in group.layers]
        self._hooks = StepHooks(optimizers, groups)
        self.left_out = dict(left_out)
        self._report: Report | None = None

    # -- what a user reads ------------------------------------------------------------------------------------------

    @property
    def masks(self) -> dict[str, Tensor]:
        """Bool masks by parameter name; change them through `set_masks`."""
        return {layer.name: layer.mask for layer in self.layers}

    @property
    def step(self) -> int:
        """Optimizer steps taken since attach; those a GradScaler skipped do not count."""
        return self._hooks.clock.steps

    @property
    def sparsity(self) -> float:
        """Share of the prunable weights that is masked now."""
        return 1.0 - sum(layer.kept() for layer in self.layers) / sum(layer.numel for layer in self.layers)

    @property
    def target(self) -> float:
        """Share of the weights (or MACs, with a budget of MACs) to cut by the end."""
        return 1.0 - sum(g.final for g in self.groups) / sum(g.total for g in self.groups)

    @property
    def budget(self) -> int:
        """The declared budget now: the count of True in the masks of methods that are exact at every step."""
        return sum(g.budget for g in self.groups)

    @property
    def explored(self) -> float | None:
        """Share of the weights that were ever active, the R_s of in-time over-parameterisation (Liu et al. 2021).

        Over the layers of methods that start sparse and grow; None if there are none.
        """
        layers = [layer for layer in self.layers if "explored" in layer.state]
        active = sum(layer.count(layer.state["explored"] | layer.mask) for layer in layers)
        return active / sum(layer.numel for layer in layers) if layers else None

    @property
    def timetable(self) -> list[Timetable]:
        """When masks are updated, one entry per method; `print(sp)` shows it."""
        return [group.timetable() for group in self.groups]

    def __repr__(self) -> str:
        steps = f"step {self.step:,} of {self.groups[0].total_steps:,}"
        head = f"Sparsifier({steps}, target sparsity {percent(self.target, 4)})"
        return "\n".join([head, *(f"  {entry}" for entry in self.timetable)])

    def summary(self) -> Report:
        """Weights kept per layer, and what is left out and why; prints as a table."""
        title = f"step {self.step} of {self.groups[0].total_steps}, target sparsity {percent(self.target, 4)}"
        title += f", explored {percent(self.explored)}" if self.explored is not None else ""
        return make_report(self.groups, self.left_out, title)

    # -- what a user does -------------------------------------------------------------------------------------------

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Replace masks; weights and optimizer state outside them become 0.

        Args:
            masks: Bool tensors by parameter name, each of its weight's shape.

        Raises:
            ValueError: A name is not that of a prunable weight, or a mask has another shape or type.
        """
        layers = {layer.key: layer for layer in self.layers}
        for name, mask in masks.items():
            if canonical(name) not in layers:
                raise ValueError(f"there is no prunable weight {name!r} to mask: summary() lists them")
            shape = layers[canonical(name)].mask.shape
            if mask.shape != shape or mask.dtype != torch.bool:
                raise ValueError(f"the mask of {name} is {mask.dtype} {tuple(mask.shape)}: not bool {tuple(shape)}")
        for name, mask in masks.items():
            layers[canonical(name)].mask.copy_(mask)
        for group in self.groups:
            group.budget = group.spent()
        self._hooks.clean()

    def detach(self) -> None:
        """Remove the hooks and leave weights and masks as they are."""
        self._hooks.detach()

    def apply_to(self, other: nn.Module) -> None:
        """Zero another copy of the model (an EMA, say) outside the masks.

        Args:
            other: A model with the same parameters.

        Raises:
            ValueError: A prunable weight is missing or has another shape there.
        """
        parameters = {canonical(name): p for name, p in other.named_parameters()}
        for layer in self.layers:
            if layer.key not in parameters or parameters[layer.key].shape != layer.shape:
                raise ValueError(f"{layer.name} is not the same in the other model: pass a copy of the one attached to")
            layer.apply_mask(local(parameters[layer.key].detach()))

    def state_dict(self) -> dict[str, Any]:
        """Step, packed masks and the methods' state, as plain tensors, numbers and strings."""
        self._hooks.end_step()
        return _checkpoint.pack(self.groups, self.step)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Load the model and the optimizer as well, before or after, in any order.

        Args:
            state: What `state_dict()` returned.

        Raises:
            ValueError: It is of another model, or of other methods or settings.
        """
        self._hooks.end_step()
        self._hooks.resume(_checkpoint.unpack(state, self.groups))

    def finalize(self, project: bool = False) -> Report:
        """Check that the target is reached exactly, leave true zeros in the weights and remove the hooks.

        Args:
            project: If the target is not reached, cut the smallest weights at once instead of raising.

        Returns:
            The weights kept per layer; prints as a table.

        Raises:
            NotAtTarget: The masks are not at the sparsity that was asked for.
            ValueError: A weight is NaN or infinite.
        """
        if self._report is None:
            self._hooks.end_step()
            self._check_trained(project)
            for group in self.groups:
                if not group.at_target() and project:
                    group.project()
                elif not group.at_target():
                    raise NotAtTarget(self._off_target(group))
            self._hooks.clean()
            self._report = self.summary()
            for warning in self._report.warnings:
                warnings.warn(warning, stacklevel=2)
            self.detach()
        return self._report

    def _check_trained(self, project: bool) -> None:
        """Raise if no step was taken, or if a weight is not finite."""
        for group in self.groups:
            updates, name = group.plan.steps, group.method.info.name
            if self.step == 0 and len(updates) and not project:
                raise NotAtTarget(
                    f"the attached optimizer took no step, so {name} made none of its {len(updates)} mask updates: "
                    "attach to the optimizer whose step() is called, or pass project=True to end here"
                )
        for optimizer in self.optimizers:
            if self._hooks.holds_latents(optimizer) and averages(optimizer) and not shows_average(optimizer):
                raise ValueError(
                    f"{type(optimizer).__name__} is in training mode: call optimizer.eval() before finalize(), "
                    "so that the average it has found is what is kept"
                )
        self._hooks.clean()
        for layer in self.layers:
            if not all_finite([layer], grads=False):
                raise ValueError(
                    f"{layer.name} holds a weight that is NaN or infinite at step {self.step}: "
                    "go back to a checkpoint from before the training diverged"
                )

    # -- copies -----------------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Sparsifier:
        """A sparsifier of the copied model and optimizer: deepcopy((model, optimizer, sp)) copies them together."""
        if any(layer.shards for layer in self.layers):
            raise TypeError("a sparsifier of sharded weights cannot be copied: load its state_dict() into another one")
        self._hooks.end_step()
        for group in self.groups:  # share the batches: a data loader cannot be copied
            memo[id(group.data)] = group.data
        twin: Sparsifier = object.__new__(type(self))
        memo[id(self)] = twin
        vars(twin).update(copy.deepcopy(vars(self), memo))
        return twin

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a sparsifier hangs on its optimizer and cannot be pickled: save sp.state_dict() beside those of model and "
            "optimizer, or copy all three with copy.deepcopy((model, optimizer, sp))"
        )

    def _off_target(self, group: Group) -> str:
        reached = group.method.reached_at(group)
        keeps = f"{group.method.info.name} keeps {group.spent():,} of {group.total:,} at step {self.step}"
        if self.step < reached:
            return (
                f"{keeps} and reaches the {group.final:,} asked for at step {reached}: "
                f"train until then, or pass project=True to cut the rest now"
            )
        waits = " (an update met a weight or gradient that is not finite, and waits)" if group.retry else ""
        return f"{keeps}, not the {group.final:,} asked for{waits}: pass project=True to cut to it now"
