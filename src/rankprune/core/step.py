"""What happens around an optimizer step: masks, clock, gradients and optimizer state are kept right here."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .averaging import SwitchHook, averages
from .clock import Clock
from .gradients import GradientMask, LatentGradient, all_finite
from .layer import PrunableLayer
from .method import Extra, Group, Latent, Method
from .optimizers import assign, disown_state, grad_scale, keeps_zeros, skipped, within_step

log = logging.getLogger("rankprune")


class StepHooks:
    """Hangs on the optimizers' step hooks and on the arrival of gradients. `Sparsifier` is its public face."""

    def __init__(self, optimizers: list[Optimizer], groups: list[Group]) -> None:
        self.optimizers, self.groups = optimizers, groups
        self.layers = [layer for group in groups for layer in group.layers]
        assign(self.layers, optimizers)
        for layer in self.layers:
            layer.follow()
            hooks = (layer.parameter._post_accumulate_grad_hooks or {}).values()
            if any(isinstance(hook, (GradientMask, LatentGradient)) for hook in hooks):
                raise ValueError(f"{layer.name} is attached already: detach() the first sparsifier before a second one")
        self._keeps_zeros = {o: keeps_zeros(o) for o in optimizers}
        self._clock = Clock()
        self._dirty = True  # the optimizer's state may be dense: found so at attach, or loaded since
        self._restored = False  # a state of ours was loaded and no step taken since
        self._updating: list[Group] = []  # groups whose masks move in the step that is under way
        self._stepped: list[Optimizer] = []  # optimizers that have taken part in it
        self._recent: set[Optimizer] = set()  # optimizers that have stepped since a gradient last arrived
        self._together = False  # all of them were seen to step on the gradients of one backward pass
        self._skipped: Tensor | None = None  # its flag, where a fused optimizer decides by itself
        self._swapped: dict[PrunableLayer, Latent] = {}  # their latents stand in the weights' place
        self._stash: dict[Optimizer, list[tuple[nn.Parameter, Tensor]]] = {}
        self._versions: dict[PrunableLayer, int] = {}  # of the weights, to notice writes by others
        self._removed: dict[PrunableLayer, Tensor] = {}  # what attach cut off, until the first step
        self._start()
        self._hooks: list[Any] = []
        self._gradients: dict[PrunableLayer, GradientMask | LatentGradient] = {}
        self._register()

    def _register(self) -> None:
        for group in self.groups:
            for layer in group.layers:
                self._gradients[layer] = gradient = self._gradient_hook(group, layer)
                self._hooks.append(layer.parameter.register_post_accumulate_grad_hook(gradient))
                if isinstance(gradient, LatentGradient):
                    self._hooks.append(gradient)
        for o in self.optimizers:
            self._hooks.append(o.register_step_pre_hook(self._before))
            self._hooks.append(o.register_step_post_hook(self._after))
            self._hooks.append(o.register_load_state_dict_post_hook(self._optimizer_loaded))
            if averages(o) and any(isinstance(group.method, Latent) for group, _ in self._of(o)):
                self._hooks.append(SwitchHook(o, partial(self._latents_in_place, o)))

    @contextmanager
    def _latents_in_place(self, optimizer: Optimizer) -> Iterator[None]:
        """Latents in the weights' place while someone moves them; then what the network sees of them."""
        mine = [(layer, group.method) for group, layer in self._of(optimizer) if isinstance(group.method, Latent)]
        with torch.no_grad():
            self._settle()
            for layer, _ in mine:
                layer.weight.copy_(layer.state["latent"])
            yield
            for layer, method in mine:
                layer.state["latent"].copy_(layer.weight)
                layer.weight.copy_(method.effective(layer))
                self._versions[layer] = layer.parameter._version

    def detach(self) -> None:
        """Take the hooks off and leave weights and masks as they are."""
        self._settle()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @torch.compiler.disable
    def _before(self, optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        if within_step(optimizer):
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            for group in self.groups:
                if group.method.needs_closure(group):
                    name = group.method.info.name
                    raise ValueError(f"{name} evaluates the loss twice in a step: call optimizer.step(closure)")
            self._prepare(optimizer)
            return None
        evaluate = closure
        for group in self.groups:
            evaluate = partial(group.method.evaluate, group, evaluate)

        def with_work() -> Any:  # the gradients exist only after the closure
            result = evaluate()
            self._prepare(optimizer)
            return result

        return ((args[0], with_work, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": with_work})

    @torch.no_grad()
    def _prepare(self, optimizer: Optimizer) -> None:
        over = optimizer in self._stepped or (self._together and not self._recent)
        if over or self._swapped:  # the other optimizers sat that step out, or it failed
            self._settle()
        if not self._stepped:
            self._begin(optimizer)
        if self._replaced():
            held = [(p, p.grad) for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            for parameter, _ in held:
                parameter.grad = None  # no optimizer touches a parameter without one
            self._stash[optimizer] = held
            return
        for group, layer in self._of(optimizer):
            if isinstance(group.method, Latent):
                self._gradients[layer].run()
                layer.grad_scale = grad_scale(optimizer)
                group.method.note_grad(layer)
                layer.grad_scale = None
                layer.weight.copy_(layer.state["latent"])
                self._swapped[layer] = group.method
            elif group not in self._updating and not group.method.dense_state:
                self._gradients[layer].run()
            for extra in group.extras:
                extra.before_step(layer)
        self._before_step(optimizer)

    def _before_step(self, optimizer: Optimizer) -> None:
        """Let the methods add to the gradients of this optimizer's weights, in the weights' own precision."""
        for group in self.groups:
            every = group.method.before_every()
            if not every or (step := self._clock.steps + 1) % every:
                continue
            mine = [layer for layer in group.layers if layer.optimizer is optimizer]
            with group.own_precision():
                for layer in mine:
                    layer.grad_scale = grad_scale(optimizer)
                group.method.before_step(mine, group, step)
                for layer in mine:
                    layer.grad_scale = None

    def _begin(self, optimizer: Optimizer) -> None:
        self._removed = {}
        for layer in self.layers:
            layer.follow()
        if self._dirty or any(self._changed(layer) for layer in self.layers):
            self._clean()
        self._skipped = skipped(optimizer)
        self._updating = [group for group in self.groups if self._due(group)]
        if self._updating and self._skipped is not None:
            if self._skipped.item():
                self._updating = []
            else:
                self._skipped = None  # looked at: the step is taken
        early = [group for group in self._updating if group.method.replaces_optimizer_step()]
        if early and not self._update(early):
            self._updating = [group for group in self._updating if group not in early]

    @torch.compiler.disable
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if within_step(optimizer):
            return
        for parameter, grad in self._stash.pop(optimizer, []):
            parameter.grad = grad
        for group, layer in [] if self._replaced() else self._of(optimizer):
            self._after_step(group, layer, skipped(optimizer))
            if isinstance(group.method, Latent):
                layer.state["latent"].copy_(layer.weight)
                self._swapped.pop(layer, None)
                if len(self._stepped) + 1 < len(self.optimizers):  # the network may be run before the others step
                    layer.weight.copy_(group.method.effective(layer))
            elif group.method.dense_state:
                layer.apply_mask(layer.weight)
            elif group in self._updating or not self._keeps_zeros[optimizer]:
                layer.apply_mask_to_weight_and_state()
        if not self._replaced():
            self._after_step_dense(optimizer, skipped(optimizer))
        self._stepped.append(optimizer)
        self._recent.add(optimizer)
        self._together |= len(self._recent) == len(self.optimizers)
        if len(self._stepped) == len(self.optimizers):
            self._finish()

    def _after_step(self, group: Group, layer: PrunableLayer, flag: Tensor | None) -> None:
        """What the method and the extras do to a weight that was stepped; undone, by a flag nobody reads, if not."""
        calls = [e.after_step for e in group.extras if type(e).after_step is not Extra.after_step]
        own = type(group.method).after_step is not Method.after_step
        before = layer.weight.clone() if flag is not None and (own or calls) else None
        if own:
            group.method.after_step(layer, group)
        for call in calls:
            call(layer)
        if flag is not None and before is not None:
            layer.weight.copy_(torch.where(flag.to(before.device) != 0, before, layer.weight))

    def _after_step_dense(self, optimizer: Optimizer, flag: Tensor | None) -> None:
        """What extras do to the parameters of this optimizer that are not pruned: one extra of a kind is enough."""
        extras = {type(e): e for group in reversed(self.groups) for e in group.extras}
        calls = [e.after_step_dense for e in extras.values() if type(e).after_step_dense is not Extra.after_step_dense]
        pruned = {layer.parameter for layer in self.layers} if calls else set()
        for settings in optimizer.param_groups if calls else ():
            for parameter in settings["params"]:
                if parameter in pruned or parameter.grad is None:
                    continue
                before = parameter.detach().clone() if flag is not None else None
                for call in calls:
                    call(parameter, float(settings["lr"]))
                if flag is not None and before is not None:
                    parameter.copy_(torch.where(flag.to(parameter.device) != 0, before, parameter))

    def _finish(self) -> None:
        self._stepped = []
        late = [group for group in self._updating if not group.method.replaces_optimizer_step()]
        if late:
            self._update(late)
        for group in self.groups:
            if isinstance(group.method, Latent):
                for layer in group.layers:
                    layer.weight.copy_(group.method.effective(layer))
        self._updating = []
        self._clock.tick(self._skipped)
        self._look()

    @torch.no_grad()
    def _settle(self) -> None:
        """End the step under way, as the optimizers that have not taken part sit it out, or one of them failed."""
        for layer, method in self._swapped.items():
            layer.weight.copy_(method.effective(layer))
            self._versions[layer] = layer.parameter._version
        self._swapped = {}
        if self._stepped:
            self._finish()

    def _update(self, groups: list[Group]) -> bool:
        """Let the methods move their masks; False, with the old masks, where a weight or gradient is not finite."""
        if not all_finite([layer for group in groups for layer in group.layers]):
            if not groups[0].retry:
                log.warning("step %d: a weight or gradient is not finite, the mask update waits", self._clock.steps + 1)
            for group in groups:
                group.retry = True
            return False
        for group in groups:
            group.retry = False
            group.step = self._clock.steps + 1
            for layer in group.layers:  # an optimizer that has stepped has unscaled its gradients already
                layer.grad_scale = grad_scale(layer.optimizer) if group.method.replaces_optimizer_step() else None
            group.run_update()
            for layer in group.layers:
                layer.grad_scale = None
                self._hide(group, layer)
        return True

    def _optimizer_loaded(self, optimizer: Optimizer) -> None:
        disown_state(optimizer, [layer.parameter for _, layer in self._of(optimizer)])
        self._dirty = True

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _due(self, group: Group, within: int = 1) -> bool:
        """Whether the next step (or one of several) moves this group's masks."""
        return group.retry or self._clock.due(group.plan.steps, within)

    def _gradient_hook(self, group: Group, layer: PrunableLayer) -> GradientMask | LatentGradient:
        if isinstance(group.method, Latent):
            return LatentGradient(layer, group.method, self._recent.clear)
        return GradientMask(layer, lambda: self._wants_dense(group))

    def _wants_dense(self, group: Group) -> bool:
        """Whether the step that a gradient arrives for needs this group's dense.

        With several optimizers it may be the step under way or, where the others sit that out, the next.
        """
        self._recent.clear()
        within = 2 if self._stepped else 1
        return group.method.dense_state or self._due(group, within)

    def _replaced(self) -> bool:
        """Whether a mask update stands in for the optimizer step that is under way."""
        return any(group.method.replaces_optimizer_step() for group in self._updating)

    def _of(self, optimizer: Optimizer) -> list[tuple[Group, PrunableLayer]]:
        return [(group, layer) for group in self.groups for layer in group.layers if layer.optimizer is optimizer]

    def _hide(self, group: Group, layer: PrunableLayer) -> None:
        """Zeros outside the mask, as far as the method wants them there."""
        if group.method.dense_state:
            layer.apply_mask(layer.weight)
        elif not isinstance(group.method, Latent):
            layer.apply_mask_to_weight_and_state()

    def _changed(self, layer: PrunableLayer) -> bool:
        """Whether someone else wrote this weight since we last looked: a checkpoint was loaded, say."""
        return self._versions[layer] != layer.parameter._version

    def _look(self) -> None:
        self._versions = {layer: layer.parameter._version for layer in self.layers}

    @torch.no_grad()
    def _clean(self) -> None:
        """Zeros outside the masks again, after others wrote weights or optimizer state."""
        for group in self.groups:
            for layer in group.layers:
                if isinstance(group.method, Latent):
                    self._follow(group.method, layer)
                else:
                    self._hide(group, layer)
        self._dirty = self._restored = False
        self._look()

    def _follow(self, method: Latent, layer: PrunableLayer) -> None:
        """Start from weights loaded without a state of ours; swapped out and back they are the image still."""
        if self._changed(layer) and not self._restored and not torch.equal(layer.weight, method.effective(layer)):
            method.follow(layer)
        layer.apply_mask(layer.weight)

    @torch.no_grad()
    def _start(self) -> None:
        before = {layer: layer.weight.clone() for layer in self.layers}  # a start may change weights as well as masks
        try:
            for group in self.groups:
                group.optimizers = self.optimizers
                group.start()
                for layer in group.layers:
                    layer.apply_mask(layer.weight)
        except BaseException:  # a method's data or loss failed: the groups before it are given their weights back
            for layer, values in before.items():
                layer.weight.copy_(values)
            raise
        self._removed = {layer: values for layer, values in before.items() if not torch.equal(values, layer.weight)}
        self._look()
