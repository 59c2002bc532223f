"""Loads a local file of weights into a model. Nothing is unpickled, and every mismatch is reported in one sentence."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from rankprune.formats import is_sparse_file, load
from rankprune.formats.sparse import TooLarge, load_fitting

from .errors import WeightsError

# Keys of the state dict inside checkpoints, and prefixes that wrappers add to parameter names.
_CONTAINERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")
# Auxiliary heads that torchvision's models use only in training: GoogLeNet, Inception v3 and segmentation.
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.", "aux_classifier.")


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a file into a model, which is unchanged if this fails.

    Args:
        model: The model.
        path: A ``.safetensors`` or torch file.

    Returns:
        The same model.

    Raises:
        WeightsError: The file cannot be read or does not fit the model.
    """
    path = Path(path)
    return fill_weights(model, read_state_dict(path), path)


def fill_weights(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> nn.Module:
    """Load weights that `read_state_dict` has read.

    Args:
        model: The model.
        state: The tensors by name.
        path: Their file, for the message.

    Returns:
        The same model.

    Raises:
        WeightsError: The weights do not fit the model.
    """
    state = without_auxiliary(model, state)
    misfit = describe_misfit(model, state)
    if misfit:
        raise WeightsError(f"{path.name} does not fit this model: {misfit}.")
    load_fitting(model, state)
    return model


def without_auxiliary(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out auxiliary training heads that the file has and the model has not.

    Args:
        model: The model.
        state: The tensors by name.

    Returns:
        The other tensors.
    """
    own = tuple(prefix for prefix in _AUXILIARY if any(name.startswith(prefix) for name in model.state_dict()))
    extra = tuple(prefix for prefix in _AUXILIARY if prefix not in own)
    return {name: tensor for name, tensor in state.items() if not name.startswith(extra)}


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Read a file of weights.

    Args:
        path: A ``.safetensors`` or torch file; a checkpoint may hold its weights under a usual key.

    Returns:
        The tensors by name on the CPU, without the prefixes of DDP and torch.compile.

    Raises:
        WeightsError: The file does not exist, is damaged, or holds no tensors by name.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"There is no weights file {path}: check the path.")
    state = _unwrap(_read(path))
    if state is None:
        raise WeightsError(
            f"{path.name} is not a checkpoint: it holds no tensors by name, at the top or under {_list(_CONTAINERS)}."
        )
    while prefix := next((p for p in _PREFIXES if all(name.startswith(p) for name in state)), None):
        state = {name[len(prefix) :]: value for name, value in state.items()}
    return state


def describe_misfit(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Describe why weights do not fit a model.

    Args:
        model: The model.
        state: The tensors by name.

    Returns:
        The end of a sentence; empty if they fit.
    """
    own = model.state_dict()
    # BatchNorm counts batches only since torch 0.4.1, and fills the counter itself.
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    unknown = [name for name in state if name not in own]
    differing = [name for name in own if name in state and own[name].shape != state[name].shape]
    if not (missing or unknown or differing):
        return ""
    head = _classifier(model)
    if not missing and not unknown and head and all(name.rpartition(".")[0] == head for name in differing):
        theirs, ours = (states[differing[0]].shape for states in (state, own))
        if theirs[1:] == ours[1:]:
            return f"it has {theirs[0]} classes and the model {ours[0]}, so give create_model num_classes={theirs[0]}"
    parts = []
    if missing:
        parts.append(f"it lacks {len(missing)} of {len(own)} tensors (first {missing[0]})")
    if unknown:
        parts.append(f"it has {len(unknown)} tensors that the model has not (first {unknown[0]})")
    if differing:
        name = differing[0]
        parts.append(f"{name} is {tuple(state[name].shape)} in the file and {tuple(own[name].shape)} in the model")
    return ", ".join(parts) + ", so create the model that it was saved from"


def _classifier(model: nn.Module) -> str | None:
    """Name of the last Linear, or 1x1 convolution, that the model defines."""
    names = [name for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    return names[-1] if names else None


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors" or _begins_as_safetensors(path):
            return load(path) if is_sparse_file(path) else load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except TooLarge as error:
        raise WeightsError(f"{error}.") from None
    except pickle.UnpicklingError as error:
        if "Unsupported global" in str(error) or "Unsupported class" in str(error):
            raise WeightsError(
                f"{path.name} holds Python objects beside its tensors, which are never unpickled: "
                "save it again as torch.save(model.state_dict(), path)."
            ) from error
        raise _unreadable(path) from error
    except Exception as error:  # a damaged file can make torch raise almost anything
        raise _unreadable(path) from error


def _begins_as_safetensors(path: Path) -> bool:
    """Recognize the format by its content: eight bytes of length, then JSON. A torch file has no brace there."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _unreadable(path: Path) -> WeightsError:
    if path.suffix == ".py":
        return WeightsError(f"{path.name} is code, not a weights file: name the model in it, as in {path.name}:Net.")
    size = path.stat().st_size
    return WeightsError(f"{path.name} is damaged, truncated or not a weights file ({size} bytes): copy it again.")


def _unwrap(value: Any) -> dict[str, Tensor] | None:
    if not isinstance(value, Mapping) or not value:
        return None
    if all(isinstance(name, str) and isinstance(item, Tensor) for name, item in value.items()):
        return dict(value)
    inner = (_unwrap(value[key]) for key in _CONTAINERS if key in value)
    return next((state for state in inner if state is not None), None)


def _list(names: tuple[str, ...]) -> str:
    return " or ".join(repr(name) for name in names)
