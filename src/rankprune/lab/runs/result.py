"""The result of a finished run: the content of result.json, typed and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .sealed_json import NotWhole

_MAX_TEXT = 4096  # characters of a text
_MAX_COUNT, _MAX_NUMBER = 10**18, 1e30  # larger than any count of MACs, and of FLOPs of training
_MAX_ENTRIES = 64  # of a table inside the result


@dataclass(frozen=True)
class RunResult:
    """What a finished run found. Every accuracy in it was measured at exactly the final sparsity.

    Attributes:
        recipe: Name of the recipe.
        fingerprint: Digest of the resolved recipe.
        setting: The same digest without the seed: equal for runs that differ in their seed alone.
        task: Network and data, "cifar-resnet20 on cifar10".
        method: Name of the pruning method with its extras, or "dense".
        steps: Optimizer steps taken.
        target_sparsity: Share of the prunable weights that was to be cut.
        sparsity: Share that is exactly zero.
        kept: Prunable weights left.
        prunable: Prunable weights of the dense network.
        metric: "top1" for classification, "box_ap" for detection.
        accuracy_last: Test accuracy (or box AP) of the last epoch, as a share.
        accuracy_best: The same of the best epoch at the final sparsity.
        delta: The δ of the δ-rank.
        delta_rank_ratio: Mean over the layers of δ-rank / full rank.
        exact_rank_ratio: Mean over the layers of numerical rank / full rank.
        dead_filters: Filters without a weight, out of `filters`.
        macs_dense: Multiply-accumulates of one image in the dense network.
        macs_sparse: The same over the weights kept.
        bytes_dense: Bytes of the dense weights file.
        bytes_sparse: Bytes of the run's own sparse file.
        training_flops: FLOPs of training over the weights kept at each step.
        training_share: The same as a share of dense training.
        seconds: Wall-clock time of training.
        precision: What autocast multiplied in.
        updates: Number of mask updates.
        survival: Share of the grown weights still active so many updates later, by number of updates.
        survival_late: The same for growth in the second half of training.
        scores: Further measures by name: "top5_last", "mask_ap_best", ...
        note: What the recipe says about itself.
    """

    recipe: str
    fingerprint: str
    setting: str
    task: str
    method: str
    seed: int
    epochs: int
    steps: int
    target_sparsity: float
    sparsity: float
    kept: int
    prunable: int
    metric: str
    accuracy_last: float
    accuracy_best: float
    best_epoch: int
    delta: float
    delta_rank_ratio: float
    exact_rank_ratio: float
    dead_filters: int
    filters: int
    macs_dense: int
    macs_sparse: int
    bytes_dense: int
    bytes_sparse: int
    training_flops: float
    training_share: float
    seconds: float
    precision: str = "float32"
    updates: int | None = None
    survival: dict[str, float] = field(default_factory=dict)
    survival_late: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The flat table that result.json holds; `from_dict` reads it back."""
        table = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "scores"}
        return {key: value for key, value in table.items() if value is not None and value != {}} | self.scores

    @classmethod
    def from_dict(cls, table: Any) -> RunResult:
        """Check a table from a file and build the result from it.

        Args:
            table: The parsed JSON. Numbers named ``*_last`` or ``*_best`` that are no field become `scores`; other
                unknown entries are ignored, so that a newer version may add some.

        Returns:
            The result.

        Raises:
            NotWhole: An entry is missing, of the wrong type, not finite or absurdly large.
        """
        if not isinstance(table, Mapping):
            raise NotWhole("it is not a JSON object")
        known = {f.name: f for f in fields(cls) if f.name != "scores"}
        required = [name for name in known if name in _REQUIRED]
        if missing := [name for name in required if name not in table]:
            raise NotWhole(f"it lacks {missing[0]!r}" + f" and {len(missing) - 1} more" * (len(missing) > 1))
        values = {name: _checked(name, table[name], str(known[name].type)) for name in known if name in table}
        rest = {name: value for name, value in table.items() if name not in known and str(name).endswith(_SCORE_ENDS)}
        return cls(**values, scores=_numbers("scores", rest))


_SCORE_ENDS = ("_last", "_best")
_REQUIRED = {f.name for f in fields(RunResult)} - {
    "precision", "updates", "survival", "survival_late", "scores", "note",
}  # fmt: skip


def _checked(name: str, value: Any, kind: str) -> Any:
    if kind.startswith("dict"):
        return _numbers(name, value)
    if kind.startswith("str"):
        if not isinstance(value, str) or len(value) > _MAX_TEXT:
            raise NotWhole(f"{name} is {str(value)[:40]!r}")
        return value
    sane = _is_count(value) if kind.startswith("int") else _is_number(value)
    if not sane or (name in ("sparsity", "target_sparsity") and not 0 <= value <= 1):
        raise NotWhole(f"{name} is {str(value)[:40]!r}")
    return value


def _numbers(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > _MAX_ENTRIES:
        raise NotWhole(f"{name} is {str(value)[:40]!r}")
    return {
        str(key)[:_MAX_TEXT]: float(_checked(f"{name}.{str(key)[:40]}", item, "float")) for key, item in value.items()
    }


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) <= _MAX_NUMBER
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER
