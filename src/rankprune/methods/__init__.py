"""One file per paper. `rankprune.list_methods()` names them; `rankprune.methods.RPG(...)` configures one.

The names are typed for tools and loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .acdc import ACDC as ACDC
    from .cap import CAP as CAP
    from .deepr import DeepR as DeepR
    from .dsr import DSR as DSR
    from .east import EAST as EAST
    from .feather import Feather as Feather
    from .gmp import GMP as GMP
    from .granet import GraNet as GraNet
    from .grasp import GraSP as GraSP
    from .lamp import LAMP as LAMP
    from .lth import LTH as LTH
    from .magnitude import Magnitude as Magnitude
    from .mlprune import MLPrune as MLPrune
    from .pbw import PBW as PBW
    from .powerprop import PowerProp as PowerProp
    from .probmask import ProbMask as ProbMask
    from .random import Random as Random
    from .rigl import RigL as RigL
    from .rpg import RPG as RPG
    from .safe import SAFE as SAFE
    from .set import SET as SET
    from .sign_in import SignIn as SignIn
    from .snfs import SNFS as SNFS
    from .snip import SNIP as SNIP
    from .spartan import Spartan as Spartan
    from .st3 import ST3 as ST3
    from .static import Static as Static
    from .str import STR as STR
    from .svite import SViTE as SViTE
    from .synflow import SynFlow as SynFlow
    from .topkast import TopKAST as TopKAST
    from .woodfisher import WoodFisher as WoodFisher
else:
    # The module of each class.
    _MODULES = {
        "ACDC": "acdc",
        "CAP": "cap",
        "DeepR": "deepr",
        "DSR": "dsr",
        "EAST": "east",
        "Feather": "feather",
        "GMP": "gmp",
        "GraNet": "granet",
        "GraSP": "grasp",
        "LAMP": "lamp",
        "LTH": "lth",
        "Magnitude": "magnitude",
        "MLPrune": "mlprune",
        "PBW": "pbw",
        "PowerProp": "powerprop",
        "ProbMask": "probmask",
        "Random": "random",
        "RigL": "rigl",
        "RPG": "rpg",
        "SAFE": "safe",
        "SET": "set",
        "SignIn": "sign_in",
        "SNFS": "snfs",
        "SNIP": "snip",
        "Spartan": "spartan",
        "ST3": "st3",
        "Static": "static",
        "STR": "str",
        "SViTE": "svite",
        "SynFlow": "synflow",
        "TopKAST": "topkast",
        "WoodFisher": "woodfisher",
    }
    __all__ = list(_MODULES)

    def __getattr__(name):
        from importlib import import_module

        from rankprune.core.registry import list_methods, method_info

        if name in _MODULES:
            return getattr(import_module(f"rankprune.methods.{_MODULES[name]}"), name)
        if not name.startswith("_"):
            for method in list_methods():  # a plug-in's
                if method_info(method).cls.__name__ == name:
                    return method_info(method).cls
        raise AttributeError(f"there is no method class {name!r} in rankprune.methods")

    def __dir__():
        return sorted(_MODULES)
