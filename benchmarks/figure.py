"""The figures of the README and the docs, from records alone: python benchmarks/figure.py

Reads results/, writes accuracy.svg, latency.svg and cost.svg to docs/assets.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankprune.lab.paper.evidence import standard_error
from rankprune.lab.paper.queue import read_queue
from rankprune.lab.paper.records import Records
from rankprune.lab.paper.table import NAMES, Evidence
from rankprune.lab.report.colours import DENSE, colour_of

TEXT, GRID = "#747c87", "#8b949e"  # readable on white and on black
ROOT = Path(__file__).resolve().parents[1]
RESULTS, ASSETS = ROOT / "results", ROOT / "docs" / "assets"
TASK, PERCENT = "cifar10-long-vgg-half", 99.0
TITLE = "Accuracy at 99 % sparsity, %\n(VGG, CIFAR-10 at 16 px, 40 epochs)"
SIZE = (3.5, 3.0)  # inches; two stand side by side in a README and in the docs
ENGINES = {
    "torch": ("torch", "#965a78"),
    "onnxruntime": ("ONNX Runtime", "#a59600"),
    "deepsparse": ("DeepSparse", "#ff5a2d"),
    "rankprune": ("rankprune", "#4b78ff"),
}
STYLE: dict[str, Any] = {
    "svg.hashsalt": "rankprune", "font.family": "sans-serif", "font.size": 9, "text.color": TEXT,
    "axes.labelcolor": TEXT, "axes.edgecolor": GRID, "xtick.color": TEXT, "ytick.color": TEXT, "axes.titlesize": 9.5,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": GRID, "grid.alpha": 0.25, "grid.linewidth": 0.6, "lines.linewidth": 1.8, "lines.markersize": 5,
}  # fmt: skip


def label_ends(axes: Axes, ends: list[tuple[float, str, str]], apart: float) -> None:
    """Names of the curves (height, name, colour) behind their last points, at least `apart` from each other."""
    right = axes.get_xticks()[-1]
    height = float("-inf")
    for y, name, colour in sorted(ends):
        height = max(y, height + apart)
        axes.annotate(name, (right, height), (8, 0), textcoords="offset points", va="center", color=colour)
    axes.set_xlim(right=1.45 * right)


def accuracy(figure: Figure) -> None:
    """Accuracy of each method that was trained at full length, best first; a bar is the standard error over seeds."""
    axes = figure.subplots()
    records = Records(RESULTS / "records")
    evidence = Evidence(read_queue(RESULTS / "queue.yaml", records), records, lambda run: run.task == TASK)
    (dense,) = evidence.values(evidence.find(TASK, "dense", None), lambda r: r.accuracy_last)
    axes.axvline(100 * dense, color=DENSE, linestyle="--", linewidth=1)
    beside = {"ha": "right", "va": "top", "textcoords": "offset points"}
    axes.annotate("dense", (100 * dense, 1.0), (-4, -2), xycoords=("data", "axes fraction"), **beside)
    found: list[tuple[float, float, str, str]] = []
    plain = [run for run in evidence.runs if run.percent == PERCENT and not run.settings and not run.pretrained]
    for method, distilled in dict.fromkeys((run.method, run.distilled) for run in plain):
        values = evidence.values(evidence.find(TASK, method, PERCENT, distilled=distilled), lambda r: r.accuracy_last)
        if values:
            name = NAMES.get(method, method) + ", distilled" * distilled
            found.append((100 * sum(values) / len(values), 100 * (standard_error(values) or 0.0), name, method))
    for y, (mean, error, _, method) in enumerate(sorted(found)):
        axes.errorbar(mean, y, xerr=error or None, marker="o", capsize=3, color=colour_of(method))
        above = {"textcoords": "offset points", "ha": "center", "color": colour_of(method)}
        axes.annotate(f"{mean:.1f}", (mean, y), (0, 5), **above)
    axes.set_yticks(range(len(found)), [name for _, _, name, _ in sorted(found)])
    axes.set(title=TITLE, xlim=(min(found)[0] - 2, 100 * dense + 0.5), ylim=(-0.6, len(found) - 0.2))
    axes.grid(axis="y", visible=False)


def latencies(record: str) -> dict[str, dict[float, tuple[float, float]]]:
    """Minimum and median milliseconds by engine and sparsity."""
    found: dict[str, dict[float, tuple[float, float]]] = {}
    for part in re.split(r"\n(?=\S+ at \d)", record)[1:]:
        percent = float(re.match(r"\S+ at ([\d.]+)%", part)[1])  # type: ignore[index]
        for name, least, median in re.findall(r"^(\w+) +([\d.]+) +([\d.]+) +[\d.]+ ", part, re.M):
            found.setdefault(name, {})[percent] = (float(least), float(median))
    return found


def latency(figure: Figure) -> None:
    """Median latency of each engine against sparsity; a bar goes down to the fastest of the rounds."""
    axes = figure.subplots()
    found = latencies((RESULTS / "benchmarks" / "engine-resnet50.txt").read_text(encoding="utf-8"))
    ends = []
    for engine, (name, colour) in ENGINES.items():
        points = found[engine]
        medians = [median for _, median in points.values()]
        spread = [[median - least for least, median in points.values()], [0.0] * len(points)]
        width = 2.4 if engine == "rankprune" else 1.6
        axes.errorbar(range(len(points)), medians, spread, marker="o", capsize=2, color=colour, lw=width)
        ends.append((medians[-1], name, colour))
    axes.set_xticks(range(len(points)), [f"{percent:g} %" for percent in points])
    title = "Latency of ResNet-50, ms\n(one image, 2 cores, median to minimum)"
    axes.set(title=title, xlabel="sparsity", ylim=(0, None))
    label_ends(axes, ends, apart=6.0)


def pair(axes: Axes, title: str, ours: float, theirs: float, usual: str, unit: str) -> None:
    bars = axes.barh([usual, "rankprune"], [theirs, ours], color=[DENSE, ENGINES["rankprune"][1]], height=0.62)
    labels = [f"{theirs:,.0f} {unit}", f"{ours:,.0f} {unit}, {theirs / ours:.1f} × less"]
    axes.bar_label(bars, labels=labels, padding=4)
    axes.set_title(title)
    axes.set_xlim(0, 1.3 * theirs)
    axes.xaxis.set_visible(False)
    axes.tick_params(left=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def cost(figure: Figure) -> None:
    rank, update = ((RESULTS / "benchmarks" / f"{name}.txt").read_text(encoding="utf-8") for name in ("rank", "update"))
    rows = figure.subplots(3, 1)
    titles = ("Rank gradients of ResNet-50", "One RPG mask update of ResNet-50", "Its memory beyond the masks")
    usual = ("torch.linalg.svd + autograd", *2 * ("concatenate, kthvalue, 2 sorts",))
    pairs = [re.findall(r"median\s+([\d.]+) ms", record) for record in (rank, update)]
    pairs.append(re.findall(r"([\d.]+) MiB", update))
    for axes, title, (ours, theirs), name, unit in zip(rows, titles, pairs, usual, ("ms", "ms", "MiB")):
        pair(axes, title, float(ours), float(theirs), name, unit)


def main() -> None:
    ASSETS.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, draw, size in (("accuracy", accuracy, SIZE), ("latency", latency, SIZE), ("cost", cost, (7, 3.6))):
            figure = Figure(figsize=size, layout="constrained")
            draw(figure)
            figure.savefig(ASSETS / f"{name}.svg", metadata={"Date": None}, transparent=True)
            print(ASSETS / f"{name}.svg")


if __name__ == "__main__":
    main()
