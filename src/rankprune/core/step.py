"""The hooks of one optimizer step: what happens before it, instead of it and after it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .clock import Clock, Step, grad_scale, skip_flag, within_step
from .form import GradientHook, GradientMask, LatentGradient, not_compiled
from .layer import PrunableLayer, all_finite
from .method import Extra, Group, Method
from .optimizers import SwitchHook, assign, averages, disown_state, keeps_zeros

log = logging.getLogger("rankprune")


class StepHooks:
    """The hooks on the steps of optimizers and on the arrival of gradients; a `Sparsifier` has one."""

    def __init__(self, optimizers: list[Optimizer], groups: list[Group]) -> None:
        self.optimizers, self.groups = optimizers, groups
        self.layers = [layer for group in groups for layer in group.layers]
        assign(self.layers, optimizers)
        for layer in self.layers:
            layer.match_weight()
            hooks = (layer.parameter._post_accumulate_grad_hooks or {}).values()
            if any(isinstance(hook, (GradientMask, LatentGradient)) for hook in hooks):
                raise ValueError(f"{layer.name} is attached already: detach() the first sparsifier before a second one")
        self.clock = Clock()
        self.dirty = True  # the optimizer's state may be dense: it was there before attach, or was loaded
        self._resumed = False  # `resume` was called, and no step taken since
        self._before_attach: dict[PrunableLayer, Tensor] = {}  # weights that attach changed; kept until the first step
        self._keeps_zeros = {o: keeps_zeros(o) for o in optimizers}
        self._step: Step | None = None
        self._stepped_since_backward: set[Optimizer] = set()
        self._lockstep = False  # all optimizers have stepped on the gradients of one backward pass before
        self._versions: dict[PrunableLayer, int] = {}  # version counters of the weights, to detect writes by other code
        self._start()
        self._handles: list[Any] = []
        self._gradients: dict[PrunableLayer, GradientHook] = {}
        self._register()

    # -- attach and detach ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _start(self) -> None:
        before = {layer: layer.weight.clone() for layer in self.layers}  # a method's start may change weights too
        try:
            for group in self.groups:
                group.optimizers = self.optimizers
                group.start()
                for layer in group.layers:
                    layer.apply_mask(layer.weight)
        except BaseException:  # a method's data or loss failed: undo what the groups before it did
            for layer, values in before.items():
                layer.weight.copy_(values)
            raise
        changed = [layer for layer in self.layers if not torch.equal(before[layer], layer.weight)]
        self._before_attach = {layer: before[layer] for layer in changed}
        self._record_versions()

    def _register(self) -> None:
        for group in self.groups:
            for layer in group.layers:
                wants_dense = partial(self._wants_dense, group)
                gradient = group.form.gradient_hook(layer, wants_dense, self._stepped_since_backward.clear)
                self._gradients[layer] = gradient
                self._handles.append(layer.parameter.register_post_accumulate_grad_hook(gradient))
                if isinstance(gradient, LatentGradient):
                    self._handles.append(gradient)
        for o in self.optimizers:
            self._handles.append(o.register_step_pre_hook(self._before))
            self._handles.append(o.register_step_post_hook(self._after))
            self._handles.append(o.register_load_state_dict_post_hook(self._optimizer_loaded))
            if averages(o) and self.holds_latents(o):
                self._handles.append(SwitchHook(o, partial(self._with_latents, o)))

    def detach(self) -> None:
        """Remove the hooks and leave weights and masks as they are."""
        self.end_step()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> StepHooks:
        """Hooks on the copied model and optimizer."""
        twin: StepHooks = object.__new__(type(self))
        memo[id(self)] = twin
        own = {k: v for k, v in vars(self).items() if k not in ("_handles", "_gradients", "_versions")}
        vars(twin).update(copy.deepcopy(own, memo), _handles=[], _gradients={})
        twin._record_versions()
        if self._handles:
            twin._register()
        return twin

    # -- before an optimizer step -----------------------------------------------------------------------------------

    @not_compiled
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

        def wrapped() -> Any:  # the gradients exist only after the closure
            result = evaluate()
            self._prepare(optimizer)
            return result

        return ((args[0], wrapped, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": wrapped})

    @torch.no_grad()
    def _prepare(self, optimizer: Optimizer) -> None:
        """Called just before an optimizer steps, with its gradients complete."""
        step = self._step
        again = step is not None and (optimizer in step.stepped or bool(step.swapped))
        if again or (self._lockstep and not self._stepped_since_backward):
            self.end_step()  # the other optimizers took no part in the step before, or it failed
        if self._step is None or not self._step.stepped:
            self._step = self._begin(optimizer)
        step = self._step
        if step.replaced:
            grads = [(p, p.grad) for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            for parameter, _ in grads:
                parameter.grad = None  # no optimizer changes a parameter without a gradient
            step.stashed[optimizer] = grads
            return
        for group, layer in self._of(optimizer):
            group.form.before(layer, self._gradients[layer], group in step.updating)
            if group.form.holds_latents:
                step.swapped[layer] = group
            for extra in group.extras:
                extra.before_step(layer)
        self._add_method_gradients(optimizer)

    def _begin(self, optimizer: Optimizer) -> Step:
        """Begin a step, and make the mask updates that replace it."""
        self._before_attach = {}
        for layer in self.layers:
            layer.match_weight()
        if self.dirty or any(self._rewritten(layer) for layer in self.layers):
            self.clean()
        step = Step([group for group in self.groups if self._due(group)], skip_flag(optimizer))
        if step.updating and step.skipped is not None:
            if step.skipped.item():
                step.updating = []
            else:
                step.skipped = None  # the flag has been read: the step is taken
        early = [group for group in step.updating if group.method.replaces_optimizer_step()]
        if early and not self._update(early):
            step.updating = [group for group in step.updating if group not in early]
        return step

    def _add_method_gradients(self, optimizer: Optimizer) -> None:
        """Let the methods add to the gradients of this optimizer's weights, in the weights' own precision."""
        for group in self.groups:
            every = group.method.before_every()
            if not every or (step := self.clock.steps + 1) % every:
                continue
            layers = [layer for layer in group.layers if layer.optimizer is optimizer]
            with group.own_precision():
                for layer in layers:
                    layer.grad_scale = grad_scale(optimizer)
                group.method.before_step(layers, group, step)
                for layer in layers:
                    layer.grad_scale = None

    # -- after an optimizer step ------------------------------------------------------------------------------------

    @not_compiled
    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if within_step(optimizer):
            return
        step = self._step = self._step or Step()
        for parameter, grad in step.stashed.pop(optimizer, []):
            parameter.grad = grad
        if not step.replaced:
            others_follow = len(step.stepped) + 1 < len(self.optimizers)
            for group, layer in self._of(optimizer):
                self._after_step(group, layer, skip_flag(optimizer))
                group.form.after(layer, group in step.updating, self._keeps_zeros[optimizer])
                step.swapped.pop(layer, None)
                if others_follow:
                    group.form.write_effective(layer)  # the network may be run before the other optimizers step
            self._after_step_dense(optimizer, skip_flag(optimizer))
        step.stepped.append(optimizer)
        self._stepped_since_backward.add(optimizer)
        self._lockstep |= len(self._stepped_since_backward) == len(self.optimizers)
        if len(step.stepped) == len(self.optimizers):
            self._finish(step)

    def _after_step(self, group: Group, layer: PrunableLayer, flag: Tensor | None) -> None:
        """Run `after_step` of method and extras, and undo it, without reading the flag, if the step was skipped."""
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
        """Run `after_step_dense` of the extras on this optimizer's parameters that are not pruned."""
        extras = {type(e): e for group in reversed(self.groups) for e in group.extras}  # once per type of extra
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

    def _finish(self, step: Step) -> None:
        self._step = None
        late = [group for group in step.updating if not group.method.replaces_optimizer_step()]
        if late:
            self._update(late)
        for group in self.groups:
            for layer in group.layers:
                group.form.write_effective(layer)
        self.clock.tick(step.skipped)
        self._record_versions()

    @torch.no_grad()
    def end_step(self) -> None:
        """End the step under way without the optimizers that have not stepped yet."""
        step, self._step = self._step, None
        if step is None:
            return
        for layer, group in step.swapped.items():
            group.form.write_effective(layer)
            self._versions[layer] = layer.parameter._version
        if step.stepped:
            self._finish(step)

    def _update(self, groups: list[Group]) -> bool:
        """Let the methods update their masks; False, with the old masks, if a weight or gradient is not finite."""
        if not all_finite([layer for group in groups for layer in group.layers]):
            if not groups[0].retry:
                log.warning("step %d: a weight or gradient is not finite, the mask update waits", self.clock.steps + 1)
            for group in groups:
                group.retry = True
            return False
        for group in groups:
            group.retry = False
            group.step = self.clock.steps + 1
            for layer in group.layers:  # an optimizer that has stepped has unscaled its gradients already
                layer.grad_scale = grad_scale(layer.optimizer) if group.method.replaces_optimizer_step() else None
            group.run_update()
            for layer in group.layers:
                layer.grad_scale = None
                group.form.restore(layer)
        return True

    # -- writes by other code ----------------------------------------------------------------------------------------

    def _optimizer_loaded(self, optimizer: Optimizer) -> None:
        disown_state(optimizer, [layer.parameter for _, layer in self._of(optimizer)])
        self.dirty = True

    @contextmanager
    def _with_latents(self, optimizer: Optimizer) -> Iterator[None]:
        """The parameters hold their latents while an optimizer moves them, and the effective weights afterwards."""
        latents = [(layer, group.form) for group, layer in self._of(optimizer) if group.form.holds_latents]
        with torch.no_grad():
            self.end_step()
            for layer, _ in latents:
                layer.weight.copy_(layer.state["latent"])
            yield
            for layer, form in latents:
                layer.state["latent"].copy_(layer.weight)
                form.write_effective(layer)
                self._versions[layer] = layer.parameter._version

    @torch.no_grad()
    def resume(self, step: int) -> None:
        """Go on from this step with masks and state that were loaded.

        Args:
            step: Optimizer steps taken.
        """
        self.clock.steps = step
        self.dirty = self._resumed = True
        for layer, values in self._before_attach.items():
            if not self._rewritten(layer):  # the weights were loaded before attach, which then pruned them
                layer.weight.copy_(values)
        self._before_attach = {}

    def _rewritten(self, layer: PrunableLayer) -> bool:
        """Whether other code has written to the weight since the last step, by loading a checkpoint for example."""
        return self._versions[layer] != layer.parameter._version

    def _record_versions(self) -> None:
        self._versions = {layer: layer.parameter._version for layer in self.layers}

    @torch.no_grad()
    def clean(self) -> None:
        """Restore zeros outside the masks, after other code wrote to weights or optimizer state."""
        for group in self.groups:
            for layer in group.layers:
                group.form.resync(layer, self._rewritten(layer) and not self._resumed)
        self.dirty = self._resumed = False
        self._record_versions()

    # -- queries ----------------------------------------------------------------------------------------------------

    def holds_latents(self, optimizer: Optimizer) -> bool:
        """Whether some weights of this optimizer are latents.

        Args:
            optimizer: One of the attached optimizers.
        """
        return any(group.form.holds_latents for group, _ in self._of(optimizer))

    def _due(self, group: Group, within: int = 1) -> bool:
        """Whether one of the next `within` steps updates this group's masks."""
        return group.retry or self.clock.due(group.plan.steps, within)

    def _wants_dense(self, group: Group) -> bool:
        """Whether the step that a gradient arrives for needs the dense gradient of this group.

        With several optimizers that is the step under way or, if the others take no part in it, the next one.
        """
        self._stepped_since_backward.clear()
        within = 2 if self._step is not None and self._step.stepped else 1
        return group.form.wants_dense(partial(self._due, group, within))

    def _of(self, optimizer: Optimizer) -> list[tuple[Group, PrunableLayer]]:
        return [(group, layer) for group in self.groups for layer in group.layers if layer.optimizer is optimizer]
