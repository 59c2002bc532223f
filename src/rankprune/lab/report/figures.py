"""Figures of runs for papers, as PNG, SVG and PDF; the same runs give the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .colours import DENSE
from .drawing import legend, line_styles, plain, plain_ticks, save


def write_figures(data: dict[str, Any], out: Path) -> list[Path]:
    """Draw every figure that the runs have data for.

    Args:
        data: What `Collector.collect` returned.
        out: Folder to write into.

    Returns:
        The files.
    """
    return save(_figures(data), out)


def _figures(data: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    runs = [run for run in data["runs"] if run["metrics"]]
    tasks = list(dict.fromkeys(run["task"] for run in data["runs"]))
    for task in tasks:
        end = "" if len(tasks) == 1 else "-" + "".join(c if c.isalnum() else "-" for c in task)
        mine = [run for run in runs if run["task"] == task]
        points = [point for point in data["points"] if point["task"] == task]
        layered = [run for run in data["runs"] if run["task"] == task and run["layers"]]
        if mine:
            yield f"training{end}", partial(_training, runs=mine)
        if any(point["method"] != "dense" for point in points):
            yield f"tradeoff{end}", partial(_tradeoff, points=points)
        if layered:
            yield f"layers{end}", partial(_layers, runs=layered)


def _training(figure: Any, runs: Sequence[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2)
    for look, run, name in zip(line_styles([run["method"] for run in runs]), runs, _labels(runs)):
        epochs = [line["epoch"] for line in run["metrics"]]
        counts = [line["at_target"] for line in run["metrics"]]
        for axes, key in ((left, "accuracy"), (right, "sparsity")):
            values = [float("nan") if line[key] is None else 100 * line[key] for line in run["metrics"]]
            axes.plot(epochs, values, ":", color=look["color"], linewidth=0.9)
            solid = [value if at else float("nan") for value, at in zip(values, counts)]
            axes.plot(epochs, solid, label=plain(name), **look)
    left.set(xlabel="epoch", ylabel=f"{runs[0]['measure'].lower()} (%)")
    right.set(xlabel="epoch", ylabel="sparsity (%)")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, (left,), len(runs))


def _tradeoff(figure: Any, points: Sequence[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    methods = list(dict.fromkeys(point["method"] for point in points if point["method"] != "dense"))
    for look, method in zip(line_styles(methods), methods):
        mine = sorted((p for p in points if p["method"] == method), key=lambda p: p["sparsity"])
        for axes, value in ((left, lambda p: 1 - p["sparsity"]), (right, lambda p: p["macs_share"])):
            shown = [p for p in mine if value(p)]
            errors = [100 * (p["error"] or 0.0) for p in shown]
            where, accuracy = [100 * value(p) for p in shown], [100 * p["accuracy"] for p in shown]
            bars = errors if any(errors) else None
            axes.errorbar(where, accuracy, yerr=bars, capsize=2, label=plain(method), **look)
    for axes, label in ((left, "weights kept (%)"), (right, "FLOPs, share of dense (%)")):
        for point in (p for p in points if p["method"] == "dense"):
            axes.axhline(100 * point["accuracy"], color=DENSE, linestyle="--", linewidth=1, label="dense")
        axes.set(xscale="log", xlabel=label)
        plain_ticks(axes.xaxis)
        low, high = axes.get_xlim()
        if sum(low <= tick <= high for tick in axes.get_xticks()) < 2:  # a logarithmic axis needs two labels
            axes.set_xlim(low / 2, high * 2)
    left.set_ylabel("test accuracy (%)")
    legend(figure, (left,), len(set(left.get_legend_handles_labels()[1])))


def _layers(figure: Any, runs: Sequence[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2)
    names = [layer["name"] for layer in runs[0]["layers"]]
    for look, run, label in zip(line_styles([run["method"] for run in runs]), runs, _labels(runs)):
        layers = {layer["name"]: layer for layer in run["layers"]}
        index = [i for i, name in enumerate(names) if name in layers]
        mine = [layers[names[i]] for i in index]
        kept = [100 * layer["density"] or float("nan") for layer in mine]
        left.plot(index, kept, label=plain(label), **look)
        right.plot(index, [100 * layer["delta_rank"] / layer["full"] for layer in mine], **look)
    deltas = ", ".join(sorted({f"{run['delta']:g}" for run in runs}))
    left.set(yscale="log", ylabel="density (%)")
    plain_ticks(left.yaxis)
    right.set_ylabel(f"δ-rank (% of full), δ = {deltas}")
    step = -(-len(names) // 16)
    for axes in (left, right):
        axes.set_xticks(range(0, len(names), step), [plain(name) for name in names[::step]], rotation=90, fontsize=6)
    legend(figure, (left,), len(runs))


def _labels(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Distinct labels: the name; with the seed if several runs have that name; or the folder."""
    names = Counter(run["name"] for run in runs)
    seeds = Counter((run["name"], run["seed"]) for run in runs)

    def label(run: dict[str, Any]) -> str:
        name, seed, folder = run["name"], run["seed"], run["id"]
        if seeds[name, seed] > 1:
            return str(folder if folder.startswith(name) else f"{name} ({folder})")
        return f"{name}, seed {seed}" if names[name] > 1 else str(name)

    return [label(run) for run in runs]
