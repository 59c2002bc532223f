"""One colour and one marker per pruning method, the same in pages, figures for papers and results/figures."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

# Of medium lightness, so that they can be read on white and on black. The methods that are compared most often have
# the colours that are easiest to distinguish (after Okabe and Ito); the others are spread over the colour wheel.
_CHOSEN = {
    "feather": "#D55E00", "rpg": "#2F7FE0", "gmp": "#11A579", "rigl": "#CC79A7", "granet": "#E0A100",
    "acdc": "#7B61D9", "str": "#3BB3D9", "magnitude": "#8C6D46", "woodfisher": "#5E8F00", "powerprop": "#E8588B",
    "topkast": "#A06CD5", "probmask": "#B5651D", "set": "#4C9F9F", "lamp": "#C2410C", "random": "#94A3B8",
}  # fmt: skip
_OTHERS = (
    "svite", "snip", "grasp", "synflow", "pbw", "mlprune", "lth", "cap", "deepr", "dsr", "snfs", "st3", "spartan",
    "safe", "east", "static", "sign_in",
)  # fmt: skip
DENSE = "#8A8F98"
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*", "<", ">")
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Look:
    """How one series is drawn."""

    colour: str
    marker: str  # matplotlib's name
    dash: str


def _wheel(index: int, count: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(index / count, 0.47 if index % 2 else 0.6, 0.5)
    return f"#{round(255 * red):02X}{round(255 * green):02X}{round(255 * blue):02X}"


_COLOURS = _CHOSEN | {name: _wheel(i, len(_OTHERS)) for i, name in enumerate(_OTHERS)}


def colour_of(method: str) -> str:
    """Return the colour of a method, regardless of extras ("rpg+ham").

    Args:
        method: The method, possibly with extras.

    Returns:
        Such as "#D55E00".
    """
    base = method.partition("+")[0]
    if base == "dense":
        return DENSE
    return _COLOURS.get(base) or _wheel(sum(base.encode()) % 97, 97)


def looks(methods: Sequence[str]) -> list[Look]:
    """Return the looks of the series in one legend, no two with the same colour.

    Args:
        methods: The method of each series. The first series of a method has the method's own colour; further ones have
            lighter and darker shades of it, and other markers and dashes.

    Returns:
        One look per series.
    """
    styles: list[Look] = []
    used: set[str] = set()
    markers = {method: i for i, method in enumerate(dict.fromkeys(m.partition("+")[0] for m in methods))}
    again: dict[str, int] = {}
    for method in methods:
        base = method.partition("+")[0]
        nth = again.get(base, 0)
        colour = shade(colour_of(base), nth)
        while colour in used:
            nth += 1
            colour = shade(colour_of(base), nth)
        again[base] = nth + 1
        used.add(colour)
        styles.append(Look(colour, MARKERS[(markers[base] + nth) % len(MARKERS)], DASHES[nth % len(DASHES)]))
    return styles


def shade(colour: str, nth: int) -> str:
    """Return the nth shade of a colour: itself, darker, lighter, darker still, ...

    Args:
        colour: Such as "#D55E00".
        nth: 0 for the colour itself.

    Returns:
        The shade.
    """
    if not nth:
        return colour
    target = 255 if nth % 2 == 0 else 0
    amount = 1 - 0.72 ** ((nth + 1) // 2)
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (target - part) * amount):02X}" for part in parts)
