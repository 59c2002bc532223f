"""The figure of the README, from the records of the other benchmarks: python benchmarks/figure.py

Reads results/benchmarks/*.txt, writes docs/assets/cost.svg, with the engine's latency once it is there.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "results" / "benchmarks"
OURS, THEIRS = "#1668b8", "#9aa3ad"


def medians(record: str) -> list[float]:
    """Median milliseconds of the two ways, ours first."""
    return [float(number) for number in re.findall(r"median\s+([\d.]+) ms", record)]


def pair(axes: Axes, title: str, values: list[float], unit: str) -> None:
    ours, theirs = values
    bars = axes.barh(["the usual way", "rankprune"], [theirs, ours], color=[THEIRS, OURS], height=0.62)
    axes.bar_label(bars, labels=[f"{theirs:,.0f} {unit}", f"{ours:,.0f} {unit}, {theirs / ours:.1f} × less"], padding=4)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlim(0, 1.3 * theirs)
    axes.xaxis.set_visible(False)
    axes.tick_params(left=False)
    for side in axes.spines.values():
        side.set_visible(False)


def latencies(record: str) -> dict[str, dict[float, float]]:
    """Median milliseconds by engine and sparsity, of the first network and batch size."""
    found: dict[str, dict[float, float]] = {}
    first = None
    for part in re.split(r"\n(?=\S+ at \d)", record)[1:]:
        network, percent = re.match(r"(\S+) at ([\d.]+)%", part).groups()  # type: ignore[union-attr]
        batch = re.search(r"batch (\d+)", part)[1]  # type: ignore[index]
        first = first or (network, batch)
        if (network, batch) == first:
            for name, median in re.findall(r"^(\w+) +[\d.]+ +([\d.]+) +[\d.]+ ", part, re.M):
                found.setdefault(name, {})[float(percent)] = float(median)
    return found


def engines(axes: Axes, record: str) -> None:
    for name, points in latencies(record).items():
        color, width = (OURS, 2.4) if name == "rankprune" else (THEIRS, 1.4)
        axes.plot(list(points), list(points.values()), marker="o", color=color, lw=width)
        axes.annotate(name, (max(points), points[max(points)]), xytext=(7, -3), textcoords="offset points")
    axes.set_title("ResNet-50, one image on the CPU, ms", loc="left", fontsize=11)
    axes.set_xlabel("sparsity, %")
    shown = sorted({sparsity for points in latencies(record).values() for sparsity in points})
    axes.set_xticks(shown)
    axes.set_xlim(right=shown[-1] + 5)
    axes.set_ylim(0)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    rank, update = ((RECORDS / f"{name}.txt").read_text(encoding="utf-8") for name in ("rank", "update"))
    memory = [float(number) for number in re.findall(r"([\d.]+) MiB", update)]
    engine = RECORDS / "engine-resnet50.txt"
    plt.rcParams.update({"svg.hashsalt": "rankprune", "font.family": "sans-serif", "font.size": 10})
    if engine.exists():
        figure = plt.figure(figsize=(10, 4.2), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
        engines(left.subplots(), engine.read_text(encoding="utf-8"))
        rows = right.subplots(3, 1)
    else:
        figure, rows = plt.subplots(3, 1, figsize=(7, 3.9), layout="constrained")
    pair(rows[0], "Rank gradients of ResNet-50", medians(rank), "ms")
    pair(rows[1], "A mask update of RPG, ResNet-50", medians(update), "ms")
    pair(rows[2], "Its memory beyond the masks", memory, "MiB")
    target = ROOT / "docs" / "assets" / "cost.svg"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, metadata={"Date": None}, facecolor="white")
    print(f"written: {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
