"""Shared by all figures for papers: styles, legends, and reproducible files."""

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
_INK = "#767B84"  # text and axes; readable on white and on black, because the background is transparent
_STYLE = {
    "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 7.5, "lines.linewidth": 1.4,
    "lines.markersize": 5, "svg.hashsalt": "rankprune", "pdf.fonttype": 42, "figure.dpi": 200,
    "axes.formatter.use_mathtext": True, "text.usetex": False, "text.color": _INK, "axes.labelcolor": _INK,
    "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "grid.color": _INK, "axes.titlecolor": _INK,
}  # fmt: skip
# Without dates, so that the same figure gives the same bytes.
_METADATA: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def save(figures: Iterable[tuple[str, Callable[[Any], None]]], out: Path) -> list[Path]:
    """Draw figures and write them in each format.

    Args:
        figures: (name, function that draws on a matplotlib figure) of each.
        out: Folder to write into.

    Returns:
        The files.

    Raises:
        RunError: A file cannot be written.
    """
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
    """Return matplotlib's `plot` arguments for one series per method, no two with the same colour.

    Args:
        methods: The method of each series.

    Returns:
        Keyword arguments of each series.
    """
    return [{"color": look.colour, "marker": look.marker, "linestyle": look.dash} for look in looks(methods)]


def legend(figure: Any, panels: Iterable[Any], entries: int) -> None:
    """Add a legend above all charts, in as many columns as fit, and make the figure taller by its rows.

    Args:
        figure: The figure.
        panels: Its axes.
        entries: Number of entries; a legend of one is left out.
    """
    if entries > 1:
        handles = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
        columns = max(1, min(entries, int(_WIDTH / (0.55 + 0.058 * max(map(len, handles))))))
        figure.set_figheight(figure.get_figheight() + 0.16 * -(-entries // columns))
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=columns)


def plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with 1, 2, 5 instead of powers of ten.

    Args:
        axis: An axis of matplotlib.
    """
    ticker = need("matplotlib.ticker", "report", "A figure")
    axis.set_major_locator(ticker.LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def plain(text: str) -> str:
    """Escape text for matplotlib: $ would start mathematics, and labels that start with _ are left out of legends.

    Args:
        text: Any text.

    Returns:
        Text that is shown unchanged.
    """
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
