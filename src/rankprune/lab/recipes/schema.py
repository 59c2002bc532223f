"""The keys of a recipe, their types and defaults. An unknown key is an error."""

from __future__ import annotations

from typing import Any, Literal, get_args

from rankprune._util import need
from rankprune.lab.models.arguments import check_args

need("pydantic", "train", "A recipe")

from pydantic import BaseModel, ConfigDict, Field, model_validator  # noqa: E402


class Section(BaseModel):
    """A group of keys in which unknown keys and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def reject_bool_as_number(cls, values: Any) -> Any:
        """Refuse true and false where a number is expected, because pydantic would convert them to 1 and 0.

        Args:
            values: The section as read from YAML.

        Returns:
            The same values.
        """
        fields = cls.model_fields
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool) and key in fields and is_number_type(fields[key].annotation):
                raise ValueError(f"{key}={value} is wrong: it should be a number")
        return values


def is_number_type(annotation: Any) -> bool:
    """Whether a type is a number and not also a boolean.

    Args:
        annotation: Type of a key.

    Returns:
        True for int and float and their optional forms.
    """
    kinds = {annotation, *get_args(annotation)}
    return bool(kinds & {int, float}) and bool not in kinds


class Data(Section):
    """The data set and how its batches are made; see `rankprune.lab.data.load_data`."""

    name: str
    root: str | None = None
    image_size: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=128, ge=1)
    augment: bool = True
    rand_augment: str | None = None  # policy of timm, imagefolder only: rand-m9-mstd0.5-inc1
    erase: float = Field(default=0, ge=0, le=1)  # probability of random erasing, imagefolder only
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # imagefolder only
    normalize: str | None = None
    limit_train: int | None = Field(default=None, ge=1)
    limit_test: int | None = Field(default=None, ge=1)
    holdout: int | None = Field(default=None, ge=1)  # test on this many training images, and do not train on them
    repeats: int = Field(default=1, ge=1)  # repeated augmentation: how often each image is drawn in a row
    steps_per_epoch: int | None = Field(default=None, ge=1)  # by default an epoch is one pass over the images
    workers: int = Field(default=0, ge=0)
    download: bool = False


class Model(Section):
    """The model, its constructor's arguments and the weights it starts from."""

    name: str
    pretrained: bool | str = False  # True: the library's default weights; a string: their name, e.g. IMAGENET1K_V1
    weights: str | None = None  # a local file to start from
    args: dict[str, Any] = {}  # for the model's own constructor

    @model_validator(mode="after")
    def plain_args(self) -> Model:
        """Refuse arguments that are not plain values."""
        check_args(self.name, self.args)
        return self

    @model_validator(mode="after")
    def one_source_of_weights(self) -> Model:
        """Refuse two sources of initial weights."""
        if self.pretrained and self.weights:
            raise ValueError("pretrained and weights both set the initial weights: give one of them")
        return self


class Method(BaseModel):
    """The pruning method. `load.py` checks the method's own hyper-parameters against its class."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str  # a method, possibly with extras: rpg+ham
    sparsity: float = Field(gt=0, lt=1)
    dense: list[str] = []  # globs of weights that stay dense

    @property
    def hyper(self) -> dict[str, Any]:
        """The method's own hyper-parameters."""
        return dict(self.model_extra or {})


class Optimizer(Section):
    """The optimizer and its weight decay."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)  # SGD only
    nesterov: bool = False  # SGD only
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW only
    weight_decay: float = Field(default=5e-4, ge=0)
    decay_norm_and_bias: bool = True  # False: weight decay on matrices and kernels only


class Schedule(Section):
    """The learning-rate schedule."""

    name: Literal["cosine", "step", "constant"] = "cosine"
    warmup_epochs: float = Field(default=0, ge=0)
    milestones: list[float] = []  # fractions of the run at which `step` multiplies the learning rate by gamma
    gamma: float = Field(default=0.1, gt=0)
    min_lr: float = Field(default=0, ge=0)
    cycles: int = Field(default=1, ge=1)  # repetitions of the schedule, for methods that retrain in rounds

    @model_validator(mode="after")
    def milestones_in_order(self) -> Schedule:
        """Refuse milestones out of order, and milestones of another schedule."""
        if self.milestones != sorted(self.milestones) or not all(0 < m < 1 for m in self.milestones):
            raise ValueError(f"milestones={self.milestones} must be increasing fractions of the run between 0 and 1")
        if (self.name == "step") != bool(self.milestones):
            raise ValueError("milestones belong to the step schedule, which needs them")
        return self


class Ema(Section):
    """An exponential moving average of the weights, which is then evaluated and saved."""

    decay: float = Field(default=0.999, gt=0, lt=1)
    warmup: bool = True


class Distill(Section):
    """Distillation from a teacher; see `rankprune.lab.losses.distill`."""

    model: str
    weights: str
    temperature: float = Field(default=4.0, gt=0)
    alpha: float = Field(default=0.5, ge=0, le=1)
    args: dict[str, Any] = {}

    @model_validator(mode="after")
    def plain_args(self) -> Distill:
        """Refuse arguments that are not plain values."""
        check_args(self.model, self.args)
        return self


class Mix(Section):
    """mixup and cutmix of timm; an alpha of 0 turns one of them off."""

    mixup: float = Field(default=0.8, ge=0)
    cutmix: float = Field(default=1.0, ge=0)
    prob: float = Field(default=1.0, ge=0, le=1)
    switch_prob: float = Field(default=0.5, ge=0, le=1)  # probability of cutmix when both are on

    @model_validator(mode="after")
    def at_least_one(self) -> Mix:
        """Refuse a section that turns both off."""
        if not self.mixup and not self.cutmix:
            raise ValueError("mixup and cutmix are both 0: leave mix out")
        return self


class Save(Section):
    """When to save a checkpoint, besides after each epoch: every so many optimizer steps or seconds."""

    every_steps: int | None = Field(default=None, ge=1)
    every_seconds: float | None = Field(default=120, gt=0)


class Recipe(Section):
    """All settings of a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9._+-]+$")
    seed: int = Field(default=0, ge=0)
    data: Data
    model: Model
    method: Method | None = None  # None: dense
    epochs: int = Field(ge=1)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    label_smoothing: float = Field(default=0, ge=0, lt=1)
    mix: Mix | None = None
    accumulate: int = Field(default=1, ge=1)  # batches per optimizer step
    clip_norm: float | None = Field(default=None, gt=0)
    amp: Literal["off", "auto", "bf16", "fp16"] = "off"  # auto: bf16 if the device has instructions for it
    channels_last: bool = False
    compile: bool = False
    device: str = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"  # under torchrun
    ema: Ema | None = None
    distill: Distill | None = None
    save: Save = Save()
    delta: float = Field(default=0.1, gt=0, lt=1)  # tolerance of the δ-rank in the result
    note: str = ""  # what a reader of the result should know

    @model_validator(mode="before")
    @classmethod
    def yaml_off_is_a_string(cls, values: Any) -> Any:
        """Accept `amp: off`, which YAML 1.1 reads as False.

        Args:
            values: The recipe as read from YAML.

        Returns:
            The values with `amp` as a string.
        """
        return {**values, "amp": "off"} if isinstance(values, dict) and values.get("amp") is False else values

    @model_validator(mode="after")
    def warmup_fits(self) -> Recipe:
        """Refuse a warm-up that is as long as the run."""
        if self.schedule.warmup_epochs >= self.epochs and self.schedule.warmup_epochs:
            raise ValueError(f"warmup_epochs={self.schedule.warmup_epochs:g} does not fit into epochs={self.epochs}")
        return self
