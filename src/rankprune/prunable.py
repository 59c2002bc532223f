"""Which parameters of a module are weight matrices, by the module's type. This is decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

Kind = Literal["conv", "linear", "attention", "recurrent", "parameter"]

PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


class Weight(NamedTuple):
    """A parameter that multiplies inputs.

    Attributes:
        attribute: Its name in the module.
        kind: The kind of layer.
        transposed: Whether the outputs are its second dimension, not its first.
    """

    attribute: str
    kind: Kind
    transposed: bool = False


def weights_of(module: nn.Module) -> Iterator[Weight]:
    """The weights of a convolution, linear, attention or recurrent layer, without those of its child modules.

    Args:
        module: The layer.
    """
    if isinstance(module, _ConvNd):
        yield Weight("weight", "conv", isinstance(module, _ConvTransposeNd))
    elif isinstance(module, nn.Linear):
        yield Weight("weight", "linear")
    elif _is_hf_conv1d(module):
        yield Weight("weight", "linear", transposed=True)
    elif isinstance(module, nn.MultiheadAttention):
        for attribute in PROJECTIONS:
            yield Weight(attribute, "attention")
    elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        for attribute in _recurrent_names(module):
            yield Weight(attribute, "recurrent")


def _recurrent_names(module: nn.RNNBase | nn.RNNCellBase) -> list[str]:
    """Names of the matrices of an RNN, LSTM or GRU: input (ih), hidden state (hh) and projection (hr), if any."""
    if isinstance(module, nn.RNNCellBase):
        return ["weight_ih", "weight_hh"]
    parts = ("ih", "hh", "hr") if module.proj_size else ("ih", "hh")
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [f"weight_{p}_l{layer}{d}" for layer in range(module.num_layers) for d in directions for p in parts]


def _is_hf_conv1d(module: nn.Module) -> bool:
    """Whether this is the `Conv1D` of Hugging Face's transformers: a linear layer whose weight is (inputs, outputs)."""
    return any(c.__name__ == "Conv1D" and c.__module__.split(".")[0] == "transformers" for c in type(module).__mro__)


def standardises(module: nn.Module) -> bool:
    """Whether a convolution standardises its weight in `forward`, which turns its zeros into other values.

    Recognised by name, since each library has its own class: timm's StdConv2d and ScaledStdConv2d, WSConv2d, …

    Args:
        module: Any module.
    """
    return isinstance(module, _ConvNd) and any(
        c.__name__.startswith(("StdConv", "ScaledStdConv", "WSConv", "WeightStandardizedConv"))
        for c in type(module).__mro__
    )
