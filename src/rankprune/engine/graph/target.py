"""Properties of the kernels that a graph depends on. They are compared with the library when it is loaded."""

from __future__ import annotations

LANES = 8  # floats in a row
REACH = 65536  # rows that a 16-bit offset can address
ACTIVATIONS = (
    "none", "relu", "relu6", "hardswish", "gelu", "sigmoid", "silu", "hardsigmoid", "gelu_tanh", "tanh", "leaky_relu",
    "elu", "mish", "softplus", "clamp", "exp", "sqrt", "abs",
)  # fmt: skip
OPERATIONS = ("add", "mul", "sub", "rsub", "div", "rdiv", "maximum", "minimum", "prelu")
