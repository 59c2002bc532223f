"""Figures for papers, as PNG, SVG and PDF; the same runs give the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankprune._atomic import write_atomic
from rankprune.models.extra import need
from rankprune.training.folder import writing

FORMATS = ("png", "svg", "pdf")
_WIDTH, _HEIGHT = 6.4, 2.7  # inches
# Okabe and Ito's colours, which are told apart in every kind of sight; then signs, then dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
_STYLE = {
    "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 7.5, "lines.linewidth": 1.4,
    "lines.markersize": 5, "svg.hashsalt": "rankprune", "pdf.fonttype": 42, "figure.dpi": 200,
    "axes.formatter.use_mathtext": True, "text.usetex": False,
}  # fmt: skip
# A date in a file would make it another file every day.
_METADATA: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def write_figures(data: dict[str, Any], out: Path) -> list[Path]:
    """Every figure the runs have something for, in each format; returns the files."""
    matplotlib = need("matplotlib", "report", "A figure")
    figure_of = need("matplotlib.figure", "report", "A figure").Figure
    written = []
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        for name, draw in _figures(data):
            figure = figure_of(figsize=(_WIDTH, _HEIGHT), layout="constrained")
            draw(figure)
            for kind in FORMATS:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
                with writing(out / f"{name}.{kind}"):
                    write_atomic(out / f"{name}.{kind}", buffer.getvalue())
                written.append(out / f"{name}.{kind}")
    return written


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
    for look, run in zip(_looks(len(runs)), runs):
        epochs = [line["epoch"] for line in run["metrics"]]
        counts = [line["at_target"] for line in run["metrics"]]
        for axes, key in ((left, "accuracy"), (right, "sparsity")):
            values = [float("nan") if line[key] is None else 100 * line[key] for line in run["metrics"]]
            axes.plot(epochs, values, ":", color=look["color"], linewidth=0.9)
            solid = [value if at else float("nan") for value, at in zip(values, counts)]
            axes.plot(epochs, solid, label=_plain(run["name"]), **look)
    left.set(xlabel="epoch", ylabel=f"{runs[0]['measure'].lower()} (%)")
    right.set(xlabel="epoch", ylabel="sparsity (%)")
    _legend(figure, left, len(runs))


def _tradeoff(figure: Any, points: Sequence[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    methods = list(dict.fromkeys(point["method"] for point in points if point["method"] != "dense"))
    for look, method in zip(_looks(len(methods)), methods):
        mine = sorted((p for p in points if p["method"] == method), key=lambda p: p["sparsity"])
        for axes, value in ((left, lambda p: 1 - p["sparsity"]), (right, lambda p: p["macs_share"])):
            shown = [p for p in mine if value(p)]
            errors = [100 * (p["error"] or 0.0) for p in shown]
            where, accuracy = [100 * value(p) for p in shown], [100 * p["accuracy"] for p in shown]
            bars = errors if any(errors) else None
            axes.errorbar(where, accuracy, yerr=bars, capsize=2, label=_plain(method), **look)
    for axes, label in ((left, "weights kept (%)"), (right, "FLOPs, share of dense (%)")):
        for point in (p for p in points if p["method"] == "dense"):
            axes.axhline(100 * point["accuracy"], color="0.5", linestyle="--", linewidth=1)
        axes.set(xscale="log", xlabel=label)
        _plain_ticks(axes.xaxis)
    left.set_ylabel("test accuracy (%)")
    _legend(figure, left, len(methods))


def _layers(figure: Any, runs: Sequence[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2)
    names = [layer["name"] for layer in runs[0]["layers"]]
    for look, run in zip(_looks(len(runs)), runs):
        found = {layer["name"]: layer for layer in run["layers"]}
        index = [i for i, name in enumerate(names) if name in found]
        mine = [found[names[i]] for i in index]
        kept = [100 * layer["density"] or float("nan") for layer in mine]
        left.plot(index, kept, label=_plain(run["name"]), **look)
        right.plot(index, [100 * layer["delta_rank"] / layer["full"] for layer in mine], **look)
    deltas = ", ".join(sorted({f"{run['delta']:g}" for run in runs}))
    left.set(yscale="log", ylabel="density (%)")
    _plain_ticks(left.yaxis)
    right.set_ylabel(f"δ-rank (% of full), δ = {deltas}")
    step = -(-len(names) // 16)
    for axes in (left, right):
        axes.set_xticks(range(0, len(names), step), [_plain(name) for name in names[::step]], rotation=90, fontsize=6)
    _legend(figure, left, len(runs))


def _looks(count: int) -> list[dict[str, Any]]:
    dashes = ("-", "--", "-.")
    return [
        {"color": _COLOURS[i % 7], "marker": _MARKERS[i % 8], "linestyle": dashes[i // 7 % 3]} for i in range(count)
    ]


def _legend(figure: Any, axes: Any, entries: int) -> None:
    """Above both charts, in as many columns as the width holds; the figure grows by its rows."""
    if entries > 1:
        handles, labels = axes.get_legend_handles_labels()
        columns = max(1, min(entries, int(_WIDTH / (0.55 + 0.058 * max(map(len, labels))))))
        figure.set_figheight(figure.get_figheight() + 0.16 * -(-entries // columns))
        figure.legend(handles, labels, loc="outside upper center", ncols=columns)


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5 as they are, not as powers of ten."""
    ticker = need("matplotlib.ticker", "report", "A figure")
    axis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def _plain(text: str) -> str:
    """Text as it stands: $ would begin mathematics, and a label that begins with _ is left out of a legend."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
