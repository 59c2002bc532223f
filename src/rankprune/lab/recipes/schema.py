"""What may stand in a recipe. Every key is checked; a default that everybody wants is not repeated in the files."""

from __future__ import annotations

from typing import Any, Literal, get_args

from rankprune._util import need
from rankprune.lab.models.arguments import check_args

need("pydantic", "train", "A recipe")

from pydantic import BaseModel, ConfigDict, Field, model_validator  # noqa: E402


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def yes_is_no_number(cls, values: Any) -> Any:
        fields = cls.model_fields
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool) and key in fields and counts(fields[key].annotation):
                raise ValueError(f"{key}={value} is wrong: it should be a number")
        return values


def counts(annotation: Any) -> bool:
    """Whether numbers are meant, and not true or false, which pydantic takes for 1 and 0."""
    kinds = {annotation, *get_args(annotation)}
    return bool(kinds & {int, float}) and bool not in kinds


class Data(Section):
    name: str
    root: str | None = None
    image_size: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=128, ge=1)
    augment: bool = True
    rand_augment: str | None = None  # timm's, of an imagefolder: rand-m9-mstd0.5-inc1
    erase: float = Field(default=0, ge=0, le=1)  # chance that a patch of an imagefolder's image is erased
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # of an imagefolder's resizing
    normalize: str | None = None
    limit_train: int | None = Field(default=None, ge=1)
    limit_test: int | None = Field(default=None, ge=1)
    holdout: int | None = Field(default=None, ge=1)  # test on so many training images, kept out of training
    repeats: int = Field(default=1, ge=1)  # repeated augmentation: versions of an image in a row
    steps_per_epoch: int | None = Field(default=None, ge=1)  # an epoch of so many batches, not of all images
    workers: int = Field(default=0, ge=0)
    download: bool = False


class Model(Section):
    name: str
    pretrained: bool | str = False  # True: the library's default weights; or their name: IMAGENET1K_V1
    weights: str | None = None  # a local file to start from
    args: dict[str, Any] = {}  # for the model's own constructor

    @model_validator(mode="after")
    def plain_args(self) -> Model:
        check_args(self.name, self.args)
        return self

    @model_validator(mode="after")
    def one_start(self) -> Model:
        if self.pretrained and self.weights:
            raise ValueError("pretrained and weights are two different starts: give one of them")
        return self


class Method(BaseModel):
    """Beside these, the hyper-parameters of the method itself: checked by `load.py` against its class."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str  # of a method, or of one with extras: rpg+ham
    sparsity: float = Field(gt=0, lt=1)
    dense: list[str] = []  # globs of weights that stay dense

    @property
    def hyper(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Optimizer(Section):
    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)  # SGD's
    nesterov: bool = False  # SGD's
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW's
    weight_decay: float = Field(default=5e-4, ge=0)
    decay_norm_and_bias: bool = True  # False: weight decay on matrices and kernels only


class Schedule(Section):
    name: Literal["cosine", "step", "constant"] = "cosine"
    warmup_epochs: float = Field(default=0, ge=0)
    milestones: list[float] = []  # shares of the run at which `step` multiplies by gamma
    gamma: float = Field(default=0.1, gt=0)
    min_lr: float = Field(default=0, ge=0)
    cycles: int = Field(default=1, ge=1)  # how often it runs through: a method of rounds trains anew in each

    @model_validator(mode="after")
    def milestones_in_order(self) -> Schedule:
        if self.milestones != sorted(self.milestones) or not all(0 < m < 1 for m in self.milestones):
            raise ValueError(f"milestones={self.milestones} must rise between 0 and 1, the start and end of the run")
        if (self.name == "step") != bool(self.milestones):
            raise ValueError("milestones belong to the step schedule, which needs them")
        return self


class Ema(Section):
    decay: float = Field(default=0.999, gt=0, lt=1)
    warmup: bool = True


class Distill(Section):
    model: str
    weights: str
    temperature: float = Field(default=4.0, gt=0)
    alpha: float = Field(default=0.5, ge=0, le=1)
    args: dict[str, Any] = {}

    @model_validator(mode="after")
    def plain_args(self) -> Distill:
        check_args(self.model, self.args)
        return self


class Mix(Section):
    """timm's mixup and cutmix, whose alphas may be 0 for one of the two."""

    mixup: float = Field(default=0.8, ge=0)
    cutmix: float = Field(default=1.0, ge=0)
    prob: float = Field(default=1.0, ge=0, le=1)
    switch_prob: float = Field(default=0.5, ge=0, le=1)  # of cutmix, where both are on

    @model_validator(mode="after")
    def one_of_them(self) -> Mix:
        if not self.mixup and not self.cutmix:
            raise ValueError("mixup and cutmix are both 0: leave mix out")
        return self


class Save(Section):
    """A checkpoint after each epoch, and besides after so many optimizer steps or seconds."""

    every_steps: int | None = Field(default=None, ge=1)
    every_seconds: float | None = Field(default=120, gt=0)


class Recipe(Section):
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
    accumulate: int = Field(default=1, ge=1)  # batches to one optimizer step
    clip_norm: float | None = Field(default=None, gt=0)
    amp: Literal["off", "auto", "bf16", "fp16"] = "off"  # auto: bf16 where the device multiplies it faster
    channels_last: bool = False
    compile: bool = False
    device: str = "auto"
    parallel: Literal["ddp", "fsdp"] = "ddp"  # under torchrun: whole copies of the model, or shards of it
    ema: Ema | None = None
    distill: Distill | None = None
    save: Save = Save()
    delta: float = Field(default=0.1, gt=0, lt=1)  # at which the result's δ-rank is taken
    note: str = ""  # what a reader of the result should know

    @model_validator(mode="before")
    @classmethod
    def off_is_a_word(cls, values: Any) -> Any:
        # YAML 1.1 reads `amp: off` as False.
        return {**values, "amp": "off"} if isinstance(values, dict) and values.get("amp") is False else values

    @model_validator(mode="after")
    def warmup_fits(self) -> Recipe:
        if self.schedule.warmup_epochs >= self.epochs and self.schedule.warmup_epochs:
            raise ValueError(f"warmup_epochs={self.schedule.warmup_epochs:g} does not fit into epochs={self.epochs}")
        return self
