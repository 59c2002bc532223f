"""What all figures for papers share: styles, legends, and files that are the same for the same data."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rankprune._util import need, write_atomic
from rankprune.lab.runs.run_folder import writing

from .colours import looks

FORMATS = ("png", "svg", "pdf")
_WIDTH, _HEIGHT = 6.4, 2.7  # inches
_INK = "#767B84"  # of text and axes where the background is transparent: read on white and on black
_STYLE = {
    "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 7.5, "lines.linewidth": 1.4,
    "lines.markersize": 5, "svg.hashsalt": "rankprune", "pdf.fonttype": 42, "figure.dpi": 200,
    "axes.formatter.use_mathtext": True, "text.usetex": False, "text.color": _INK, "axes.labelcolor": _INK,
    "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "grid.color": _INK, "axes.titlecolor": _INK,
}  # fmt: skip
# A date in a file would make it another file every day.
_METADATA: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def save(figures: Iterable[tuple[str, Callable[[Any], None]]], out: Path) -> list[Path]:
    """Each named figure, drawn, in each format; returns the files."""
    matplotlib = need("matplotlib", "report", "A figure")
    figure_of = need("matplotlib.figure", "report", "A figure").Figure
    written = []
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        for name, draw in figures:
            figure = figure_of(figsize=(_WIDTH, _HEIGHT), layout="constrained")
            draw(figure)
            for kind in FORMATS:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata=_METADATA[kind], transparent=True)
                with writing(out / f"{name}.{kind}"):
                    write_atomic(out / f"{name}.{kind}", buffer.getvalue())
                written.append(out / f"{name}.{kind}")
    return written


def line_styles(methods: Sequence[str]) -> list[dict[str, Any]]:
    """Arguments of matplotlib's `plot` for series of these methods, no two of one colour."""
    return [{"color": one.colour, "marker": one.marker, "linestyle": one.dash} for one in looks(methods)]


def legend(figure: Any, panels: Iterable[Any], entries: int) -> None:
    """Above all charts, in as many columns as the width holds; the figure grows by its rows."""
    if entries > 1:
        found = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
        columns = max(1, min(entries, int(_WIDTH / (0.55 + 0.058 * max(map(len, found))))))
        figure.set_figheight(figure.get_figheight() + 0.16 * -(-entries // columns))
        figure.legend(found.values(), found, loc="outside upper center", ncols=columns)


def plain_ticks(axis: Any) -> None:
    """1, 2, 5 as they are, not as powers of ten."""
    ticker = need("matplotlib.ticker", "report", "A figure")
    axis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def plain(text: str) -> str:
    """Text as it stands: $ would begin mathematics, and a label that begins with _ is left out of a legend."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
