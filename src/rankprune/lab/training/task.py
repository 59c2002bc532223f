"""Builds the objects of a run from its recipe: data, model, optimizer, sparsifier, loss."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from rankprune._util import need
from rankprune.core.method import DropGrow, method_info
from rankprune.core.sparsifier import Sparsifier, attach
from rankprune.extras import Survival
from rankprune.lab.data import DataError, DataModule, load_data
from rankprune.lab.data.augment import mixer
from rankprune.lab.data.coco import CocoData
from rankprune.lab.data.sampling import seed_of
from rankprune.lab.distributed.parallel import copies, load_model, load_optimizer, shard, share_data, syncing, whole
from rankprune.lab.distributed.world import World
from rankprune.lab.losses import distill
from rankprune.lab.models import About, ModelError, create_model, load_weights
from rankprune.lab.recipes.names import SMOKE, base_method
from rankprune.lab.recipes.schema import Recipe

from .detection import to_device
from .optimizer import build_optimizer
from .validation import validate


@dataclass
class Task:
    """The objects of a run; `state_dict` holds everything that training changes."""

    recipe: Recipe
    device: torch.device
    data: DataModule
    world: World
    model: nn.Module  # possibly sharded
    wrapped: nn.Module  # the model as DDP or FSDP2 wraps it
    forward: Callable[..., Any]  # `wrapped`, compiled if the recipe says so
    optimizer: Optimizer
    sparsifier: Sparsifier | None
    ema: Any  # timm's ModelEmaV3
    scaler: torch.amp.GradScaler
    teacher: nn.Module | None
    steps_per_epoch: int
    precision: torch.dtype | None = None  # of autocast; None if it is off
    survival: Survival | None = None  # counts how many grown weights stay active
    mix: Any = None  # timm's Mixup, which also smooths the labels

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.recipe.epochs * self.steps_per_epoch

    @property
    def samples_per_step(self) -> int:
        """Samples per optimizer step, over all processes."""
        return self.data.sampling.step_size * self.recipe.accumulate

    @property
    def sharded(self) -> bool:
        """Whether the model is sharded over processes."""
        return self.world.size > 1 and self.recipe.parallel == "fsdp"

    def syncing(self, now: bool) -> AbstractContextManager[Any]:
        """Decide whether backward within the block averages gradients over processes; only a step's last one does.

        Args:
            now: Average them now.

        Returns:
            A context manager for the block.
        """
        return syncing(self.wrapped, now)

    def loss(self, images: Any, labels: Any) -> Tensor:
        """Compute the loss of a batch.

        Args:
            images: A tensor, or a list of images for detection.
            labels: A tensor, or a list of targets for detection.

        Returns:
            The loss, a scalar.
        """
        if isinstance(images, list):
            images, labels = to_device(images, labels, self.device)
            with self._autocast():
                return torch.stack(list(self.forward(images, labels).values())).sum()
        images, labels = images.to(self.device), labels.to(self.device)
        if self.mix is not None:
            images, labels = self.mix(images, labels)
        if self.recipe.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        smoothing, soft = 0.0 if self.mix else self.recipe.label_smoothing, self.recipe.distill
        with self._autocast():
            logits = self.forward(images)
            if self.teacher is None or soft is None:
                return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
            with torch.no_grad():
                taught = self.teacher(images)
            return distill(logits.float(), taught.float(), labels, soft.temperature, soft.alpha, smoothing)

    def at_target(self) -> bool:
        """Whether the sparsity is exactly the final one, so that an accuracy measured now counts."""
        return self.sparsifier is None or all(group.at_target() for group in self.sparsifier.groups)

    def about(self) -> About:
        """Return the description of the model that is stored with its weights."""
        settings, data = self.recipe.model, self.data
        return About(settings.name, data.num_classes, data.in_channels, data.image_size, settings.args)

    def evaluated(self) -> nn.Module:
        """Return the model that is evaluated: the moving average with the current masks, if there is one."""
        if self.ema is None:
            return self.model
        if self.sparsifier is not None:
            self.sparsifier.apply_to(self.ema.module)
        averaged: nn.Module = self.ema.module
        return averaged

    def plain(self) -> nn.Module:
        """Return the unsharded network, for its layers; of a sharded model, with untrained weights."""
        return _create(self.recipe.model.name, self.data, False, self.recipe.model.args) if self.sharded else self.model

    def whole_model(self) -> nn.Module:
        """Return the evaluated model unsharded. All processes must call it, but only the main one gets the weights."""
        if not self.sharded:
            return self.evaluated()
        state = whole(self.evaluated().state_dict(), self.world.main)
        model = self.plain()
        if self.world.main:
            model.load_state_dict(state)
        return model

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all objects. If the model is sharded, all processes call it and the main one gets it."""
        return whole(self._state_dict(), self.world.main) if self.sharded else self._state_dict()

    def _state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sparsifier": None if self.sparsifier is None else self.sparsifier.state_dict(),
            "ema": None if self.ema is None else self.ema.module.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of all objects.

        Args:
            state: What `state_dict` returned.
        """
        if self.sparsifier is not None:  # first, because it undoes the initial pruning in the weights
            self.sparsifier.load_state_dict(state["sparsifier"])
        load_model(self.model, state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        if self.ema is not None:
            load_model(self.ema.module, state["ema"])
        self.scaler.load_state_dict(state["scaler"])

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)


class _Batches:
    """The batches of the first epoch, the same at each iteration, for methods that need data of their own."""

    def __init__(self, data: DataModule, device: torch.device) -> None:
        self.data, self.device = data, device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.data.train(0):
            yield images.to(self.device), labels.to(self.device)


def build(recipe: Recipe, data: DataModule | None = None, world: World | None = None) -> Task:
    """Build the objects of a run.

    Args:
        recipe: The recipe.
        data: Replaces the recipe's data.
        world: The processes of the run; by default a single one.

    Returns:
        The objects.

    Raises:
        ModelError: The model cannot be built, or does not fit the data.
        DataError: The data cannot be opened.
    """
    world = world or World()
    device = _device(recipe.device)
    with world.first_on_each_machine():  # one process may download data or weights
        data = share_data(data or open_data(recipe), world)
        torch.manual_seed(seed_of(recipe.seed))
        model = _model(recipe, data)
    validate(recipe, model, data)
    steps_per_epoch = -(-data.batches_per_epoch // recipe.accumulate)
    model = model.to(device)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ema = _ema(recipe, model)
    if world.size > 1 and recipe.parallel == "fsdp":
        for network in (model,) if ema is None else (model, ema.module):
            shard(network, world, device)
        wrapped = model
    else:
        wrapped = copies(model, world)
    optimizer = build_optimizer(model, recipe.optimizer)
    sparsifier, survival = None, None
    if recipe.method is not None:
        grows = issubclass(method_info(base_method(recipe.method.name)).cls, DropGrow)
        survival = Survival() if grows else None
        labelled = not isinstance(data, CocoData)  # images of one size with class labels
        example = torch.zeros(1, data.in_channels, data.image_size, data.image_size, device=device)
        with warnings.catch_warnings():
            if not world.main:  # only the main process warns
                warnings.simplefilter("ignore")
            if recipe.name.startswith(SMOKE):  # it has few steps on purpose
                warnings.filterwarnings("ignore", ".* updates its masks")
            sparsifier = attach(
                wrapped,
                optimizer,
                recipe.method.name,
                sparsity=recipe.method.sparsity,
                total_steps=recipe.epochs * steps_per_epoch,
                dense=recipe.method.dense,
                seed=recipe.seed,
                extras=() if survival is None else (survival,),
                example=example if labelled else None,
                data=_Batches(data, device) if labelled else None,
                loss_fn=F.cross_entropy if labelled else None,
                **recipe.method.hyper,
            )
    return Task(
        recipe=recipe,
        device=device,
        data=data,
        world=world,
        model=model,
        wrapped=wrapped,
        forward=torch.compile(wrapped) if recipe.compile else wrapped,
        optimizer=optimizer,
        sparsifier=sparsifier,
        ema=ema,
        scaler=torch.amp.GradScaler(device.type, enabled=recipe.amp == "fp16"),
        teacher=_teacher(recipe, data, device),
        steps_per_epoch=steps_per_epoch,
        precision=_precision(recipe.amp, device),
        survival=survival,
        mix=_mix(recipe, data),
    )


def _precision(amp: str, device: torch.device) -> torch.dtype | None:
    """The dtype of autocast; "auto" is bf16 on an accelerator and on a CPU with instructions for it."""
    if amp == "auto":
        amp = "bf16" if device.type != "cpu" or getattr(torch.cpu, "_is_avx512_bf16_supported", bool)() else "off"
    return {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[amp]


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ModelError(f"device={name!r} is not there: leave it out, or use 'cpu'.") from None


def open_data(recipe: Recipe, root: Path | None = None) -> DataModule:
    """Open the data of a recipe.

    Args:
        recipe: The recipe.
        root: Folder of the data, instead of the recipe's.

    Returns:
        The data.
    """
    settings = recipe.data.model_dump()
    own = settings.pop("root")
    return load_data(settings.pop("name"), root or own, seed=recipe.seed, **settings)


def _model(recipe: Recipe, data: DataModule) -> nn.Module:
    settings = recipe.model
    model = _create(settings.name, data, settings.pretrained, settings.args)
    return model if settings.weights is None else load_weights(model, Path(settings.weights))


def _teacher(recipe: Recipe, data: DataModule, device: torch.device) -> nn.Module | None:
    if recipe.distill is None:
        return None
    teacher = _create(recipe.distill.model, data, False, recipe.distill.args)
    load_weights(teacher, Path(recipe.distill.weights))
    return teacher.to(device).eval().requires_grad_(False)


def _create(name: str, data: DataModule, pretrained: bool | str, args: dict[str, Any]) -> nn.Module:
    try:
        return create_model(name, data.num_classes, data.in_channels, pretrained, **copy.deepcopy(args))
    except TypeError as error:  # the constructor does not accept `args`
        raise ModelError(f"model.args={args} does not suit {name}: {error}.") from None


def _mix(recipe: Recipe, data: DataModule) -> Any:
    if recipe.mix is None:
        return None
    if data.batch_size % 2:
        raise DataError(f"mix pairs the images of a batch, and {data.batch_size} is odd: take an even data.batch_size.")
    return mixer(**recipe.mix.model_dump(), smoothing=recipe.label_smoothing, classes=data.num_classes)


def _ema(recipe: Recipe, model: nn.Module) -> Any:
    if recipe.ema is None:
        return None
    timm_utils = need("timm.utils", "train", "EMA")
    return timm_utils.ModelEmaV3(model, decay=recipe.ema.decay, use_warmup=recipe.ema.warmup)
