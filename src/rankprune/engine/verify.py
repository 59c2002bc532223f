"""Verifies that a compiled module gives torch's results."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rankprune.engine.frontend.call import Call
from rankprune.engine.frontend.trace import reason

from .program import Program

TOLERANCE = 1e-3  # relative to the largest output: well above rounding errors, well below a wrong result
COARSE = 3e-2  # the same if the module computes in 16 bits
FEW = 0.01  # fraction of outputs that may differ more, because rounding can flip a comparison or a cast to integers


def run_module(module: nn.Module, call: Call) -> Any:
    """Run a call in torch.

    Args:
        module: The module.
        call: The call.

    Returns:
        The module's result.

    Raises:
        ValueError: The module raised.
    """
    args, kwargs = call.arguments(call.tensors)
    try:
        with torch.no_grad():
            return module(*args, **kwargs)
    except Exception as error:
        raise ValueError(f"{type(module).__name__} does not run on the example: {reason(error)}") from error


def need_equal(module: nn.Module, program: Program, call: Call) -> None:
    """Raise unless the program gives torch's result on the example, and on one image of it.

    The program was traced with several images, and a module may treat a single one differently.

    Args:
        module: The module.
        program: The compiled program.
        call: The example.

    Raises:
        ValueError: The results differ.
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
            continue  # the module does not accept a single image
        try:
            got = program.run(part.batch, part.tensors)
        except Exception as error:
            problem: str | None = f"the compiled one fails ({reason(error)})"
        else:
            problem = difference(want, got, tolerance)
        if problem is None or difference(want, run_module(module, part), tolerance):
            continue  # the same result, or a module that is not deterministic
        raise ValueError(
            f"compile cannot be used on {type(module).__name__}: at batch {batch} {problem}, because its forward "
            "depends on the batch size; write it for any batch (squeeze(1) for squeeze(), no branch on shape[0])"
        )


def difference(want: Any, got: Any, tolerance: float = TOLERANCE) -> str | None:
    """Describe the difference between two results.

    Integers and booleans are compared only by shape and type, because an argmax of nearly equal numbers may differ.

    Args:
        want: The result of torch.
        got: The result of the compiled module.
        tolerance: Allowed difference, relative to the largest value.

    Returns:
        Part of a sentence; None if the results agree.
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
    """The largest difference; 0 if it can be explained by rounding."""
    finite = a.isfinite()
    if not finite.any():
        return 0.0
    off = (a.double() - b.double())[finite].abs()
    beyond = ~(off <= tolerance * _largest(a) + 1e-5)  # True for NaN
    if beyond.double().mean() <= FEW:
        return 0.0
    return float(off.nan_to_num(math.inf).max())


def _largest(a: Tensor) -> float:
    return float(a[a.isfinite()].double().abs().max())
