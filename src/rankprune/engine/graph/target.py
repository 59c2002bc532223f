"""What a graph must know of the kernels it is made for. The library is compared with these when it is loaded."""

from __future__ import annotations

LANES = 8  # floats of a row
REACH = 65536  # rows a 16-bit offset can tell apart
ACTIVATIONS = (
    "none", "relu", "relu6", "hardswish", "gelu", "sigmoid", "silu", "hardsigmoid", "gelu_tanh", "tanh", "leaky_relu",
    "elu", "mish", "softplus", "clamp", "exp", "sqrt", "abs",
)  # fmt: skip
OPERATIONS = ("add", "mul", "sub", "rsub", "div", "rdiv", "maximum", "minimum", "prelu")
