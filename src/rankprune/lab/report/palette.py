"""One colour for each method, the same in every figure and on the report's page.

Every colour has a contrast of at least 3:1 on white and on black. They were chosen one after the other, each as far as
possible from those before it, to normal and to red-green colour-blind vision: methods named first are told apart best.
"""

from __future__ import annotations

from collections.abc import Iterable

METHODS = {
    "feather": "#009a6e", "rpg": "#1673c4", "acdc": "#d55e00", "gmp": "#b45fa0", "granet": "#a87b00",
    "rigl": "#9678ff", "probmask": "#5a6969", "mlprune": "#c31e4b", "powerprop": "#7896b4", "woodfisher": "#007800",
    "str": "#ff5a78", "topkast": "#963cc3", "pbw": "#69a500", "svite": "#0096ff", "set": "#b48778",
    "magnitude": "#a54b00", "snfs": "#d269e1", "lth": "#785a96", "cap": "#008796", "lamp": "#69783c",
    "spartan": "#b42d87", "safe": "#695ae1", "static": "#877887", "st3": "#8778c3", "snip": "#b45a5a",
    "grasp": "#e13c78", "synflow": "#d278a5", "random": "#87965a", "east": "#009600", "dsr": "#d22d00",
    "deepr": "#00a5a5", "sign_in": "#00785a",
}  # fmt: skip
# For what is no method of this package: variants, plug-ins, runs told apart by their recipe.
OTHERS = (
    "#ff5a2d", "#3c6996", "#4b78ff", "#a55ae1", "#0096c3", "#f05ab4", "#965a78", "#d26969", "#96785a", "#c34bc3",
    "#788700", "#a59600",
)  # fmt: skip
TEXT, GRID, DENSE = "#747c87", "#8b949e", "#8b949e"  # readable on white and on black


def colours(series: Iterable[str]) -> dict[str, str]:
    """A colour for each series of one legend, none of them twice.

    Args:
        series: Names of the series. A method of this package has its own colour wherever it is drawn; other names take
            the colours that are left, in order.

    Returns:
        The colour of each series as ``#rrggbb``.
    """
    names = list(dict.fromkeys(series))
    found = {name: METHODS[name] for name in names if name in METHODS}
    free = [colour for colour in (*OTHERS, *METHODS.values()) if colour not in found.values()]
    rest = (name for name in names if name not in found)
    return {**found, **{name: free[i % len(free)] for i, name in enumerate(rest)}}
