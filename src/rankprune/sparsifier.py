"""The one stateful object: it hangs on the optimizer's step hooks and keeps masks, clock and optimizer state right."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _checkpoint
from ._attach import Sources, build_groups
from ._clock import Clock
from ._gradients import GradientMask, all_finite
from ._optimizers import assign, disown_state, grad_scale, keeps_zeros, skipped, unwrap
from ._sharding import local
from ._site import Site, canonical
from ._summary import Layer, Report
from .method import Extra, Group, Latent, Method

__all__ = ["NotAtTarget", "Sparsifier", "attach"]

log = logging.getLogger("rankprune")


class NotAtTarget(RuntimeError):
    """The masks are not at the sparsity that was asked for."""


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: str | Method | Mapping[str, Any],
    *,
    sparsity: float | None = None,
    total_steps: int,
    dense: Iterable[str | type[nn.Module]] = (),
    seed: int = 0,
    extras: Sequence[Extra] = (),
    example: Any = None,
    data: Iterable[Any] | None = None,
    loss_fn: Callable[..., Tensor] | None = None,
    **hyper: Any,
) -> Sparsifier:
    """Make `optimizer.step()` prune the model; the training loop stays as it is.

    `method` is a name, a configured method, or a mapping glob -> method (first match wins, each with its own sparsity).
    `total_steps` counts optimizer steps. `example` is an input of the model, needed for `budget="macs"` only; `data`
    (an iterable of batches) and `loss_fn(outputs, targets)` are for the methods whose `needs` name them.
    """
    sources = Sources(model, data, loss_fn, example)
    groups, left_out = build_groups(sources, method, sparsity, total_steps, dense, seed, extras, hyper)
    optimizers = [unwrap(o) for o in (optimizer if isinstance(optimizer, (list, tuple)) else [optimizer])]
    return Sparsifier(optimizers, groups, left_out)


class Sparsifier:
    """Returned by `attach`. Reads: masks, step, sparsity, target, budget, summary(). Ends with finalize()."""

    def __init__(self, optimizers: list[Optimizer], groups: list[Group], left_out: Mapping[str, str]) -> None:
        self.optimizers, self.groups, self.left_out = optimizers, groups, dict(left_out)
        self.sites = [site for group in groups for site in group.sites]
        assign(self.sites, optimizers)
        for site in self.sites:
            if any(isinstance(h, GradientMask) for h in (site.parameter._post_accumulate_grad_hooks or {}).values()):
                raise ValueError(f"{site.name} is attached already: detach() the first sparsifier before a second one")
        self._keeps_zeros = {o: keeps_zeros(o) for o in optimizers}
        self._clock = Clock()
        self._restored = False  # state was loaded and no step taken since
        self._updating: list[Group] = []  # groups whose masks move in the step that is under way
        self._stepped: list[Optimizer] = []  # optimizers that have taken part in it
        self._skipped: Tensor | None = None  # its flag, where a fused optimizer decides by itself
        self._stash: dict[Optimizer, list[tuple[nn.Parameter, Tensor]]] = {}
        self._versions: dict[Site, int] = {}  # of the weights after our last look, to see when others write them
        self._removed: dict[Site, Tensor] = {}  # what attach cut off, until the first step
        self._report: Report | None = None
        self._start()
        self._hooks: list[Any] = []
        self._gradients: dict[Site, GradientMask] = {}
        for group in groups:
            for site in group.sites:
                self._gradients[site] = GradientMask(site, lambda group=group: self._wants_dense(group))  # type: ignore[misc]
                self._hooks.append(site.parameter.register_post_accumulate_grad_hook(self._gradients[site]))
        for o in optimizers:
            self._hooks.append(o.register_step_pre_hook(self._before))
            self._hooks.append(o.register_step_post_hook(self._after))
            self._hooks.append(o.register_load_state_dict_post_hook(self._optimizer_loaded))

    # -- what a user reads ------------------------------------------------------------------------------------------

    @property
    def masks(self) -> dict[str, Tensor]:
        """Bool masks by parameter name; change them through `set_masks`."""
        return {site.name: site.mask for site in self.sites}

    @property
    def step(self) -> int:
        """Optimizer steps taken since attach; those a GradScaler skipped do not count."""
        return self._clock.steps

    @property
    def sparsity(self) -> float:
        """Share of the prunable weights that is masked now."""
        return 1.0 - sum(site.kept() for site in self.sites) / sum(site.numel for site in self.sites)

    @property
    def target(self) -> float:
        """Share of the weights (of the MACs, with that budget) to be cut by the end."""
        return 1.0 - sum(g.final for g in self.groups) / sum(g.total for g in self.groups)

    @property
    def budget(self) -> int:
        """The declared budget now: a method that is exact at every step has just as many True in its masks."""
        return sum(g.budget for g in self.groups)

    def summary(self) -> Report:
        """Weights kept per layer, and what was left out and why; prints as a table."""
        pairs = [(site, group.method.info.name) for group in self.groups for site in group.sites]
        layers = [Layer(site.name, tuple(site.shape), site.numel, site.kept(), method) for site, method in pairs]
        title = f"step {self.step} of {self.groups[0].total_steps}, target sparsity {self.target:.4%}"
        return Report(layers, self.left_out, title)

    # -- what a user does -------------------------------------------------------------------------------------------

    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Replace masks by name; weights and optimizer state outside them become 0."""
        sites = {site.key: site for site in self.sites}
        for name, mask in masks.items():
            if canonical(name) not in sites:
                raise ValueError(f"there is no prunable weight {name!r} to mask: summary() lists them")
            shape = sites[canonical(name)].mask.shape
            if mask.shape != shape or mask.dtype != torch.bool:
                raise ValueError(f"the mask of {name} is {mask.dtype} {tuple(mask.shape)}: not bool {tuple(shape)}")
        for name, mask in masks.items():
            sites[canonical(name)].mask.copy_(mask)
        for group in self.groups:
            group.budget = group.spent()
        self._clean()

    def apply_to(self, other: nn.Module) -> None:
        """Zero another copy of the model (an EMA, say) outside the masks."""
        parameters = {canonical(name): p for name, p in other.named_parameters()}
        for site in self.sites:
            if site.key not in parameters or parameters[site.key].shape != site.shape:
                raise ValueError(f"{site.name} is not the same in the other model: pass a copy of the one attached to")
            site.hide(local(parameters[site.key].detach()))

    def state_dict(self) -> dict[str, Any]:
        """Clock, packed masks and the methods' state: plain tensors, numbers and strings."""
        return _checkpoint.pack(self.groups, self.step)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Load the model and the optimizer as well, before or after, in any order."""
        self._clock.steps = _checkpoint.unpack(state, self.groups)
        self._restored = True
        for site, values in self._removed.items():  # the weights were loaded before attach cut them
            site.weight.copy_(values)
        self._removed = {}

    def finalize(self, project: bool = False) -> Report:
        """Check that the target is reached exactly, leave true zeros in the weights, take the hooks off; report.

        Off the target: raises NotAtTarget, or with `project=True` cuts the smallest weights at once.
        """
        if self._report is None:
            for group in self.groups:
                if not group.at_target() and project:
                    group.project()
                elif not group.at_target():
                    raise NotAtTarget(
                        f"{group.method.info.name} keeps {group.spent():,} of {group.total:,} at step {self.step} and "
                        f"reaches the {group.final:,} asked for at step {group.method.reached_at(group)}: "
                        f"train until then, or pass project=True to cut the rest now"
                    )
            self._clean()
            self._report = self.summary()
            self.detach()
        return self._report

    def detach(self) -> None:
        """Take the hooks off and leave weights and masks as they are."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # -- the optimizer's hooks --------------------------------------------------------------------------------------

    @torch.compiler.disable
    def _before(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._prepare(optimizer)
            return None

        def with_work() -> Any:  # the gradients exist only after the closure
            result = closure()
            self._prepare(optimizer)
            return result

        return ((args[0], with_work, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": with_work})

    @torch.no_grad()
    def _prepare(self, optimizer: Optimizer) -> None:
        if optimizer in self._stepped:  # the other optimizers sat that step out
            self._finish()
        if not self._stepped:
            self._begin(optimizer)
        if self._replaced():
            held = [(p, p.grad) for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            for parameter, _ in held:
                parameter.grad = None  # no optimizer touches a parameter without one
            self._stash[optimizer] = held
            return
        for group, site in self._of(optimizer):
            if isinstance(group.method, Latent):
                if site.parameter.grad is not None:
                    grad = local(site.parameter.grad)
                    grad.copy_(group.method.latent_grad(site, grad))
                site.weight.copy_(site.state["latent"])
            elif group not in self._updating and not group.method.dense_state:
                self._gradients[site].run()
            for extra in group.extras:
                extra.before_step(site)

    def _begin(self, optimizer: Optimizer) -> None:
        self._removed = {}
        if any(self._versions.get(site) != site.parameter._version for site in self.sites) or self._restored:
            self._clean()  # someone wrote weights or state: a checkpoint was loaded, say
        self._skipped = skipped(optimizer)
        self._updating = [group for group in self.groups if self._due(group)]
        if self._updating and self._skipped is not None:
            if self._skipped.item():
                self._updating = []
            else:
                self._skipped = None  # looked at: the step is taken
        early = [group for group in self._updating if group.method.replaces_step()]
        if early and not self._update(early):
            self._updating = [group for group in self._updating if group not in early]

    @torch.compiler.disable
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, grad in self._stash.pop(optimizer, []):
            parameter.grad = grad
        for group, site in [] if self._replaced() else self._of(optimizer):
            group.method.after_step(site, group)
            for extra in group.extras:
                extra.after_step(site)
            if isinstance(group.method, Latent):
                site.state["latent"].copy_(site.weight)
            elif group.method.dense_state:
                site.hide(site.weight)
            elif group in self._updating or not self._keeps_zeros[optimizer]:
                site.hide_all()
        self._stepped.append(optimizer)
        if len(self._stepped) == len(self.optimizers):
            self._finish()

    def _finish(self) -> None:
        self._stepped = []
        late = [group for group in self._updating if not group.method.replaces_step()]
        if late:
            self._update(late)
        for group in self.groups:
            if isinstance(group.method, Latent):
                for site in group.sites:
                    site.weight.copy_(group.method.effective(site))
        self._updating = []
        self._clock.tick(self._skipped)
        self._look()

    def _update(self, groups: list[Group]) -> bool:
        """Let the methods move their masks; False, with the old masks, where a weight or gradient is not finite."""
        if not all_finite([site for group in groups for site in group.sites]):
            if not groups[0].retry:
                log.warning("step %d: a weight or gradient is not finite, the mask update waits", self.step + 1)
            for group in groups:
                group.retry = True
            return False
        for group in groups:
            group.retry = False
            group.step = self.step + 1
            for site in group.sites:  # an optimizer that has stepped has unscaled its gradients already
                site.grad_scale = grad_scale(site.optimizer) if group.method.replaces_step() else None
            group.run_update()
            for site in group.sites:
                site.grad_scale = None
                self._hide(group, site)
        return True

    def _optimizer_loaded(self, optimizer: Optimizer) -> None:
        disown_state(optimizer, [site.parameter for _, site in self._of(optimizer)])
        self._versions.clear()

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _due(self, group: Group) -> bool:
        """Whether the next step moves this group's masks."""
        return group.retry or self._clock.due(group.updates())

    def _wants_dense(self, group: Group) -> bool:
        """Whether the next step needs this group's gradients dense."""
        return group.method.dense_state or isinstance(group.method, Latent) or self._due(group)

    def _replaced(self) -> bool:
        """Whether a mask update stands in for the optimizer step that is under way."""
        return any(group.method.replaces_step() for group in self._updating)

    def _of(self, optimizer: Optimizer) -> list[tuple[Group, Site]]:
        return [(group, site) for group in self.groups for site in group.sites if site.optimizer is optimizer]

    def _hide(self, group: Group, site: Site) -> None:
        """Zeros outside the mask, as far as the method wants them there."""
        if group.method.dense_state:
            site.hide(site.weight)
        elif not isinstance(group.method, Latent):
            site.hide_all()

    def _look(self) -> None:
        self._versions = {site: site.parameter._version for site in self.sites}

    @torch.no_grad()
    def _clean(self) -> None:
        """Zeros outside the masks again, after others wrote weights or optimizer state."""
        for group in self.groups:
            for site in group.sites:
                self._hide(group, site)
                if not isinstance(group.method, Latent):
                    continue
                if not self._restored and self._versions.get(site) not in (None, site.parameter._version):
                    site.state["latent"].copy_(site.weight)  # weights loaded without a state of ours: start from them
        self._restored = False
        self._look()

    @torch.no_grad()
    def _start(self) -> None:
        for group in self.groups:
            group.budget, group.optimizers = group.total, self.optimizers
            group.final = group.method.final_budget(group)
            group.start()
            for site in group.sites:
                before = site.weight.clone()
                site.hide(site.weight)
                if not torch.equal(before, site.weight):
                    self._removed[site] = before
        self._look()
