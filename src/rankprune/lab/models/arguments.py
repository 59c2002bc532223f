"""The constructor arguments that a file may give for a model: known names with plain values.

Recipes, run folders and weights files may come from others. Libraries have arguments that read a file (timm's
`checkpoint_path`) or the network (`pretrained_cfg_overlay`, `weights_backbone`), so only the names listed here are
passed on.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from typing import Any

from .errors import ModelError

_NUMBERS = {
    "img_size", "image_size", "input_size", "patch_size", "window_size", "min_size", "max_size", "depth", "depths",
    "layers", "num_layers", "num_blocks", "base_width", "width_per_group", "groups", "cardinality", "embed_dim",
    "embed_dims", "dims", "hidden_dim", "mlp_dim", "stem_width", "head_hidden_size", "num_heads", "mlp_ratio",
    "mlp_ratios", "growth_rate", "num_init_features", "bn_size", "width_mult", "alpha", "output_stride",
    "layer_scale", "ls_init_value", "init_values", "reg_tokens", "drop_rate", "drop_path_rate", "attn_drop_rate",
    "proj_drop_rate", "pos_drop_rate", "patch_drop_rate", "head_dropout", "dropout", "attention_dropout",
    "stochastic_depth_prob", "drop_connect_rate",
}  # fmt: skip
_FLAGS = {
    "qkv_bias", "qk_norm", "class_token", "no_embed_class", "final_norm", "pre_norm", "fc_norm", "dynamic_img_size",
    "dynamic_img_pad", "strict_img_size", "always_partition", "aux_logits", "aux_loss", "transform_input",
    "init_weights", "zero_init_residual",
}  # fmt: skip
_WORDS = {"global_pool", "act_layer", "norm_layer", "pos_embed"}
_LARGEST, _LONGEST = 65536, 64
_WORD = re.compile(r"[A-Za-z0-9_.+-]{0,32}")
_LIBRARIES = ("torchvision:", "timm:")
# Our own models and those of the user accept any argument except these, which say where weights come from.
_START = frozenset(("pretrained", "weights", "checkpoint_path"))


def check_args(name: str, args: Any) -> dict[str, Any]:
    """Check the constructor arguments that a file gives for a model.

    Args:
        name: Name of the model.
        args: The arguments by name.

    Returns:
        A copy of them.

    Raises:
        ModelError: An argument is not allowed, or its value is not plain.
    """
    if not isinstance(args, Mapping):
        raise ModelError(f"The arguments of {name} are {type(args).__name__}, not names with values.")
    return {key: _checked(name, key, value) for key, value in args.items()}


def _checked(name: str, key: Any, value: Any) -> Any:
    if not isinstance(key, str) or not key.isidentifier():
        raise ModelError(f"{str(key)[:_LONGEST]!r} is not the name of an argument of {name}.")
    listed = name.startswith(_LIBRARIES)
    if key in _START or (listed and key not in _NUMBERS | _FLAGS | _WORDS):
        near = difflib.get_close_matches(key, _NUMBERS | _FLAGS | _WORDS, n=1)
        way_out = f"did you mean {near[0]!r}?" if near else "leave it out, or build the model in Python."
        what = "only sizes, rates and switches of its layers"
        raise ModelError(f"A recipe or file may not pass {key!r} to {name}, {what}: {way_out}")
    kinds = {_is_numbers: _NUMBERS, _is_flag: _FLAGS, _is_word: _WORDS}
    fits = [test for test, names in kinds.items() if not listed or key in names]
    if value is not None and not any(test(value) for test in fits):
        shown = repr(value) if len(repr(value)) <= _LONGEST else repr(value)[:_LONGEST] + "…"
        what = " or ".join(kind for test, kind in _KINDS.items() if test in fits)
        raise ModelError(f"{key}={shown} cannot be passed to {name}: it should be {what}.")
    return list(value) if isinstance(value, (list, tuple)) else value


def _is_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= _LONGEST and all(_is_number(item) for item in value)
    return _is_number(value)


def _is_number(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and math.isfinite(value) and abs(value) <= _LARGEST


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


_KINDS = {
    _is_numbers: f"a number up to {_LARGEST} or a list of such",
    _is_flag: "true or false",
    _is_word: "a word",
}
