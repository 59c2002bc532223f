"""The paper's regime at CPU scale: does the rank term raise rank or accuracy, and do grown weights survive?"""

from __future__ import annotations

import statistics
from typing import Any

from .evidence import number
from .runs import Run
from .table import NAMES, PROTOCOL, Evidence, Table, Value
from .tables_paper import Scale

PREFIX = "cifar10-long-"
_NETS = {"vgg": "small VGG", "vgg-half": "half-width VGG", "resnet20": "ResNet-20"}
_HEAD = (
    "net", "sparsity", "method", "settings", "accuracy", "δ-rank", "dead", "steps", "updates", "survive 1", "3", "10",
)  # fmt: skip
_NOTES = [
    "survive 1, 3, 10: fraction of the grown weights still active 1, 3 and 10 updates later.",
    "lam=ratio:R: the rank gradient of each layer is scaled to R times the root mean square of the task gradient; "
    "rank_on=weights: it is added to the gradient of the active weights every 10 steps and not used for growth; "
    "rank_signal=noise: the control, noise of the same size instead of the rank gradient.",
    "from trained weights: it starts from the dense network of the same length; distilled: it learns from its "
    "outputs as well as from the labels.",
    "δ-rank: mean over the layers of δ-rank / full rank at δ = 0.1; dead: filters without a weight.",
]


def is_tuning(run: Run) -> bool:
    """Whether a run is evaluated on held-out training images.

    Args:
        run: The run.

    Returns:
        True if it has a holdout.
    """
    return any(key == "data.holdout" for key, _ in run.settings)


def is_long(run: Run) -> bool:
    """Whether a run is of this regime; runs of 4 and of 40 epochs are never mixed in a table.

    Args:
        run: The run.

    Returns:
        True for the long tasks, except tuning runs.
    """
    return run.task.startswith(PREFIX) and not is_tuning(run)


def long(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of every setting with its accuracy, rank and survival of grown weights.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    table = Table("long", "The paper's regime: CIFAR-10 at 16 pixels, 40 epochs unless noted, ΔT = 100", _HEAD)
    _fill(table, evidence)
    table.notes = [*_NOTES, PROTOCOL]
    return evidence.finish(table)


def tuning(evidence: Evidence, scale: Scale) -> Table:
    """Build the table of the short runs on which the regime's settings were chosen.

    Args:
        evidence: The runs and their records.
        scale: "cpu" or "full".

    Returns:
        The table.
    """
    table = Table("tuning", "Choices made on held-out training images", _HEAD)
    _fill(table, evidence)
    table.notes = [
        "accuracy: of the last epoch, on 5,000 held-out training images; the test set is not used.",
        *_NOTES,
    ]
    return evidence.finish(table)


def _fill(table: Table, evidence: Evidence) -> None:
    """Add a row for every setting that has a record."""
    seen: dict[tuple[Any, ...], Run] = {}
    for run in evidence.runs:
        seen.setdefault((run.task, run.percent, run.method, run.settings, run.pretrained, run.distilled), run)
    for run in sorted(seen.values(), key=_order):
        runs = evidence.find(
            run.task, run.method, run.percent, run.settings, run.pretrained, distilled=run.distilled
        )  # fmt: skip
        if not evidence.records_of(runs):  # counts them as planned
            continue
        table.rows.append((
            _NETS.get(run.task.removeprefix(PREFIX), run.task),
            f"{run.percent:g} %" if run.percent is not None else "",
            NAMES.get(run.method, run.method),
            settings_of(run),
            evidence.accuracy(runs),
            evidence.number(runs, lambda r: r.delta_rank_ratio),
            evidence.number(runs, lambda r: r.dead_filters, 0),
            _count(evidence, runs, lambda r: r.steps),
            _count(evidence, runs, lambda r: r.updates),
            *(survival(evidence, runs, after) for after in ("1", "3", "10")),
        ))  # fmt: skip


def _order(run: Run) -> tuple[Any, ...]:
    return (run.task, run.percent or 0.0, run.method, run.pretrained, run.distilled, str(run.settings))


def settings_of(run: Run) -> str:
    """Format the settings of a run that differ from its recipe.

    Args:
        run: The run.

    Returns:
        Such as "lam=4, every=50".
    """
    shown = [(key, value) for key, value in run.settings if key != "data.holdout"]
    words = [f"{key.removeprefix('method.')}={value}" for key, value in shown]
    words += ["from trained weights"] * run.pretrained + ["distilled"] * run.distilled
    return ", ".join(words)


def survival(evidence: Evidence, runs: list[Run], after: str) -> str:
    """Format the fraction of grown weights that are still active some updates later.

    Args:
        evidence: The runs and their records.
        runs: Runs that differ only in their seed.
        after: Number of updates, "1", "3" or "10".

    Returns:
        The text; empty for methods that do not grow.
    """
    values = evidence.values(runs, lambda r: r.survival.get(after))
    return number(values, 2) if values else ""


def _count(evidence: Evidence, runs: list[Run], value: Value) -> str:
    values = evidence.values(runs, value)
    return f"{statistics.fmean(values):,.0f}" if values else ""


def by_ratio(
    evidence: Evidence, task: str, percent: float, extra: tuple[tuple[str, Any], ...], epochs: int | None = None
) -> dict[float, list[Run]]:
    """Group RPG's runs by the ratio of rank gradient to task gradient; 0 is without a rank term.

    Args:
        evidence: The runs and their records.
        task: The task.
        percent: The sparsity.
        extra: Further settings of the runs.
        epochs: Length of the runs; None is the recipe's own.

    Returns:
        The runs by ratio, ascending.
    """
    found: dict[float, list[Run]] = {}
    for run in evidence.runs:
        settings = dict(run.settings)
        lam, length = settings.pop("method.lam", None), settings.pop("epochs", None)
        plain = run.task == task and run.percent == percent and run.method == "rpg" and not run.needs_dense
        plain = plain and length == epochs
        if plain and lam == 0 and not settings:
            found.setdefault(0.0, []).append(run)
        elif plain and isinstance(lam, str) and settings == dict(extra):
            found.setdefault(float(lam.removeprefix("ratio:")), []).append(run)
    return dict(sorted(found.items()))
