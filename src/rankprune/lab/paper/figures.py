"""The paper's figures and accuracy against sparsity, drawn from the records."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rankprune.lab.report.colours import DENSE
from rankprune.lab.report.drawing import legend, line_styles, plain, plain_ticks, save

from .evidence import standard_error
from .queue import read_queue
from .records import Records
from .runs import Run
from .table import Evidence, Value, method_of, named, numbers
from .tables_long import by_ratio, is_long, is_tuning
from .tables_ours import ERK, KINDS, at_lambda, net, plain_runs


class Point(NamedTuple):
    """A point of a curve."""

    x: float
    y: float
    error: float | None  # standard error of y; None for a single run


Measure = tuple[Value, str]  # a value of a result, and the label of its axis
Curves = Mapping[str, Sequence[Point]]
# Figures of the long regime: task, sparsity, epochs (None: the recipe's 40), and what the axis says of them.
_REGIMES = {
    "long": ("cifar10-long-vgg-half", 99.0, None, "half-width VGG,\n99 %, 40 epochs"),
    "long-99.5": ("cifar10-long-vgg-half", 99.5, None, "half-width VGG,\n99.5 %, 40 epochs"),
    "long-99.9": ("cifar10-long-vgg-half", 99.9, None, "half-width VGG,\n99.9 %, 40 epochs"),
    "long-vgg": ("cifar10-long-vgg", 99.5, None, "small VGG,\n99.5 %, 40 epochs"),
    "long-quarter": ("cifar10-long-vgg", 99.5, 10, "small VGG,\n99.5 %, 10 epochs"),
}
_ACCURACY, _RANK = "test accuracy (%)", "δ-rank / full rank, δ = 0.1"
_SURVIVAL = "grown weights left\nafter 10 updates (%)"
_TITLES = {"resnet20": "ResNet-20", "vgg": "small VGG"}


def write(results: Path) -> list[Path]:
    """Draw every figure that has records, into figures/ beside them.

    Args:
        results: Folder that holds queue.yaml and records/.

    Returns:
        The files, named like their tables.
    """
    records = Records(results / "records")
    queue = read_queue(results / "queue.yaml", records)
    short = Evidence(queue, records, lambda run: not is_long(run) and not is_tuning(run))
    regime = Evidence(queue, records, is_long)
    return save(itertools.chain(_figures(short), _long(regime)), results / "figures")


def _figures(evidence: Evidence) -> Iterator[tuple[str, Callable[[Any], None]]]:
    accuracy: Measure = (lambda r: 100 * r.accuracy_last, _ACCURACY)
    rank: Measure = (lambda r: r.delta_rank_ratio, _RANK)
    for name, runs, (value, label), where, x_label in (
        ("cifar10", plain_runs(evidence), accuracy, _kept, "weights kept (%)"),
        ("rank", plain_runs(evidence), rank, _kept, "weights kept (%)"),
        ("flops", plain_runs(evidence, (ERK,)), accuracy, _macs, "MACs (% of dense)"),
    ):
        panels = _by_net(evidence, runs, value, where)
        if panels:
            dense = _dense(evidence, list(panels)) if label == _ACCURACY else {}
            dress = partial(_dress_net, dense=dense, x_label=x_label, y_label=label)
            yield name, partial(_panels, panels=panels, dress=dress)
    against = {label: _against_lambda(evidence, value) for value, label in (accuracy, rank)}
    if any(curves for curves in against.values()):
        yield "lambda", partial(_panels, panels=against, dress=_dress_lambda)


def _long(evidence: Evidence) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Accuracy, δ-rank and survival against the ratio of rank to task gradient."""
    kinds: dict[str, tuple[tuple[str, Any], ...]] = {
        "growth by the rank term": (),
        "growth by noise of its size": (("method.rank_signal", "noise"),),
        "weights trained by the rank term": (("method.rank_on", "weights"),),
        "weights trained by noise of its size": (("method.rank_on", "weights"), ("method.rank_signal", "noise")),
    }
    measures: tuple[Measure, ...] = (
        (lambda r: 100 * r.accuracy_last, _ACCURACY),
        (lambda r: r.delta_rank_ratio, _RANK),
        (lambda r: 100 * r.survival["10"] if "10" in r.survival else None, _SURVIVAL),
    )
    for figure, (task, percent, epochs, caption) in _REGIMES.items():
        panels: dict[str, dict[str, list[Point]]] = {}
        for label, settings in kinds.items():
            curve = by_ratio(evidence, task, percent, settings, epochs)
            if not any(ratio and evidence.records_of(runs) for ratio, runs in curve.items()):
                continue  # the run without a rank term alone is not a curve
            for ratio, runs in curve.items():
                for value, name in measures:
                    if (point := _point(evidence, runs, ratio, value)) is not None:
                        panels.setdefault(name, {}).setdefault(label, []).append(point)
        if panels:
            yield figure, partial(_panels, panels=panels, dress=partial(_dress_ratio, caption=caption))


def _dress_ratio(axes: Any, name: str, caption: str) -> None:
    axes.set(xlabel=f"rank / task gradient\n({caption})", ylabel=name)
    axes.set_xscale("symlog", linthresh=0.1, base=10)
    axes.set_xticks([0, 0.1, 0.3, 1, 3], ["0", "0.1", "0.3", "1", "3"])
    axes.minorticks_off()


def _point(evidence: Evidence, runs: list[Run], x: float | None, value: Value) -> Point | None:
    values = evidence.values(runs, value)
    return Point(x, statistics.fmean(values), standard_error(values)) if values and x is not None else None


def _kept(evidence: Evidence, runs: list[Run]) -> float | None:
    return 100 - (runs[0].percent or 0)


def _macs(evidence: Evidence, runs: list[Run]) -> float | None:
    share = evidence.macs(runs)
    return None if share is None else 100 * share


def _by_net(
    evidence: Evidence, planned: Sequence[Run], value: Value,
    where: Callable[[Evidence, list[Run]], float | None],
) -> dict[str, Curves]:  # fmt: skip
    """For each small network, one curve per method over its sparsities."""
    found: dict[str, dict[str, list[Point]]] = {}
    for run in planned:
        if run.percent is None:
            continue
        runs = evidence.find(run.task, run.method, run.percent, run.settings)
        if (point := _point(evidence, runs, where(evidence, runs), value)) is not None:
            found.setdefault(net(run), {}).setdefault(named(run), []).append(point)
    return {name: {label: sorted(points) for label, points in curves.items()} for name, curves in found.items()}


def _dense(evidence: Evidence, nets: Sequence[str]) -> dict[str, float]:
    levels = {}
    for name in nets:
        values = evidence.values(evidence.find(f"cifar10-cpu-{name}", "dense", None), lambda r: r.accuracy_last)
        if values:
            levels[name] = 100 * statistics.fmean(values)
    return levels


def _against_lambda(evidence: Evidence, value: Value) -> Curves:
    found: dict[str, list[Point]] = {}
    for label, settings in KINDS:
        for lam in numbers()["lambda"]["lams"]:
            runs = at_lambda(evidence, "cpu", lam, settings if lam else ())
            if (point := _point(evidence, runs, float(lam), value)) is not None:
                found.setdefault(label, []).append(point)
    return {label: points for label, points in found.items() if any(point.x for point in points)}


def _panels(figure: Any, panels: Mapping[str, Curves], dress: Callable[[Any, str], None]) -> None:
    """One chart per name; curves with the same label look the same in all charts."""
    drawn = figure.subplots(1, len(panels), squeeze=False)[0]
    found = dict.fromkeys(label for curves in panels.values() for label in curves)
    labels = sorted(found, key=lambda label: label != "RPG")  # RPG first, so that it looks the same in all figures
    look = dict(zip(labels, line_styles([method_of(label) for label in labels])))
    for axes, (name, curves) in zip(drawn, panels.items()):
        for label in labels:
            if label in curves:
                _curve(axes, label, curves[label], look[label])
        dress(axes, name)
    legend(figure, drawn, len(labels))


def _dress_net(axes: Any, name: str, dense: Mapping[str, float], x_label: str, y_label: str) -> None:
    if name in dense:
        axes.axhline(dense[name], color=DENSE, linestyle="--", linewidth=1)
        where = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
        axes.annotate("dense", (0.01, dense[name]), color=DENSE, size=7.5, **where)
    axes.set(xscale="log", xlabel=x_label, ylabel=y_label, title=_TITLES.get(name, name))
    plain_ticks(axes.xaxis)


def _dress_lambda(axes: Any, name: str) -> None:
    axes.set(xlabel="λ", ylabel=name)
    axes.set_xscale("symlog", linthresh=0.5, base=2)
    lams = numbers()["lambda"]["lams"]
    axes.set_xticks(lams, [f"{lam:g}" for lam in lams])
    axes.minorticks_off()


def _curve(axes: Any, label: str, points: Sequence[Point], look: dict[str, Any]) -> None:
    errors = [point.error or 0.0 for point in points]
    bars = errors if any(errors) else None
    axes.errorbar([p.x for p in points], [p.y for p in points], yerr=bars, capsize=2, label=plain(label), **look)
