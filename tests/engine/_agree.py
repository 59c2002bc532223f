"""Comparison of a compiled module with torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rankprune as rp
from rankprune.engine import compile as compiling
from rankprune.engine import timing


def agree(module: nn.Module, *shape: int, batches=(1, 2, 5, 8, 13), threads=(1, 2), scale: float = 2.0) -> None:
    """The same numbers as torch within 1e-5 of the largest, without help from torch, at any batch and thread count."""
    torch.manual_seed(0)
    x = scale * torch.randn(max(batches), *shape)
    module.eval()
    with torch.no_grad():
        want = module(x)
    with pytest.MonkeyPatch.context() as patch:
        trace_once(patch)
        patch.setattr(timing, "ROUNDS", (1, 1))  # the report's times are not looked at
        for count in threads:
            fast = rp.compile(module, x[:1], threads=count, tune=False)
            assert fast.islands == ()
            for n in batches:
                got = fast(x[:n])
                assert got.shape == want[:n].shape
                assert (got - want[:n]).abs().max() <= 1e-5 * want[:n].abs().max(), (n, count)


def trace_once(patch: pytest.MonkeyPatch) -> None:
    """Trace the module at its first compilation only: torch.export takes most of the time of each."""
    traced: list[Any] = []

    def once(module: nn.Module, call: Any, real: Any = compiling.trace) -> Any:
        if not traced:
            traced.append(real(module, call))
        return traced[0]

    patch.setattr(compiling, "trace", once)
