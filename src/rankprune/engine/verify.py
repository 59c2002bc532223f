"""Compares a compiled module with torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rankprune.engine.frontend.call import Call
from rankprune.engine.frontend.trace import reason

from .program import Program

TOLERANCE = 1e-3  # of the largest output: far above rounding, far below another result
COARSE = 3e-2  # the same where the module rounds to 16 bits on its way
FEW = 0.01  # share of an output that may differ more: rounding turns a comparison or a cast to integers now and then


def run_module(module: nn.Module, call: Call) -> Any:
    """What torch gives for a call; raises a ValueError in one sentence where it does not run."""
    args, kwargs = call.arguments(call.tensors)
    try:
        with torch.no_grad():
            return module(*args, **kwargs)
    except Exception as error:
        raise ValueError(f"{type(module).__name__} does not run on the example: {reason(error)}") from error


def need_equal(module: nn.Module, program: Program, call: Call) -> None:
    """Raises a ValueError unless the program gives torch's result on the example, and on one image of it.

    The program was followed with several images, and a module may treat a single one otherwise.
    """
    shown = [node.meta.get("val") for node in program.captured.traced.module.graph.nodes]
    coarse = any(isinstance(t, Tensor) and t.dtype in (torch.float16, torch.bfloat16) for t in shown)
    tolerance = COARSE if coarse else TOLERANCE
    for batch in dict.fromkeys((call.batch, 1)):
        part = call if batch == call.batch else call.resized(batch)
        try:
            want = run_module(module, part)
        except ValueError:
            if batch == call.batch:
                raise
            continue  # a module for several images only
        try:
            got = program.run(part.batch, part.tensors)
        except Exception as error:
            found: str | None = f"the compiled one fails ({reason(error)})"
        else:
            found = difference(want, got, tolerance)
        if found is None or difference(want, run_module(module, part), tolerance):  # or torch differs from itself
            continue
        raise ValueError(
            f"compile cannot take {type(module).__name__}, because at batch {batch} {found}: its forward depends on "
            "the batch size, so write it for any batch (squeeze(1) for squeeze(), no branch on shape[0])"
        )


def difference(want: Any, got: Any, tolerance: float = TOLERANCE) -> str | None:
    """What differs between two results, as part of a sentence; None: they agree.

    Integers and booleans are compared by shape and type only: the largest of near-equal numbers may be another.
    """
    first, spec = pytree.tree_flatten(want)
    second, other = pytree.tree_flatten(got)
    if str(spec) != str(other):
        return f"torch returns {spec} and the compiled one {other}"
    for a, b in zip(*([t.detach() if isinstance(t, Tensor) else t for t in leaves] for leaves in (first, second))):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if type(a) is not type(b) or a != b:
                return f"torch returns {a!r} and the compiled one {b!r}"
        elif a.shape != b.shape or a.dtype != b.dtype:
            shown = [f"a tensor {tuple(t.shape)} of {str(t.dtype).removeprefix('torch.')}" for t in (a, b)]
            return f"torch returns {shown[0]} and the compiled one {shown[1]}"
        elif a.is_floating_point() and a.numel() and (off := _distance(a, b, tolerance)):
            return f"the compiled one differs from torch by {off:.2g} where the largest number is {_largest(a):.2g}"
    return None


def _distance(a: Tensor, b: Tensor, tolerance: float) -> float:
    """The largest difference if it is more than rounding, else 0."""
    finite = a.isfinite()
    if not finite.any():
        return 0.0
    off = (a.double() - b.double())[finite].abs()
    beyond = ~(off <= tolerance * _largest(a) + 1e-5)  # NaN is beyond
    if beyond.double().mean() <= FEW:
        return 0.0
    return float(off.nan_to_num(math.inf).max())


def _largest(a: Tensor) -> float:
    return float(a[a.isfinite()].double().abs().max())
