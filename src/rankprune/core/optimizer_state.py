"""Zeros in an optimizer's state, in value: quantised states need not have 0 as the code of 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def zero_outside(state: Mapping[str, Any], name: str, tensor: Tensor, keep: Tensor) -> bool:
    """Write the value 0 where `keep` is False into a quantised state tensor; False where it is not quantised.

    Integer codes get the code of the value next to 0, which is 0 itself in practice: their values are listed beside
    them (`state1` in `qmap1`, bitsandbytes) or within a tensor subclass (`codes` in `qmap`, torchao). Another subclass
    that can `dequantize` is quantised anew.

    Args:
        state: The optimizer's state of one parameter.
        name: The key of the tensor in it.
        tensor: The tensor.
        keep: A mask of its shape.
    """
    if type(tensor).dequantize is Tensor.dequantize:
        codes: Any = tensor
        values = state.get(name.replace("state", "qmap")) if name.startswith("state") else None
        if tensor.is_floating_point() or not isinstance(values, Tensor):
            return False
    else:
        codes, values = getattr(tensor, "codes", None), getattr(tensor, "qmap", None)
    if isinstance(codes, Tensor) and isinstance(values, Tensor) and codes.shape == keep.shape:
        codes.masked_fill_(~keep, int(values.abs().argmin()))
    else:
        tensor.copy_(torch.where(keep, tensor.dequantize(), 0.0))
    return True
