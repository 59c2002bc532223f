"""The description of a file's network: stored in its metadata, or inferred from the shapes of its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankprune._util import one_line

from .arguments import check_args
from .errors import ModelError
from .inputs import input_channels, input_features, input_size, other_sizes
from .registry import create_model
from .user_code import names_user_code
from .weights import describe_misfit, without_auxiliary

# A prime that is not the width of any layer: dimensions that it divides are numbers of classes.
_CLASSES, _CHANNELS = 1009, 3
_LIBRARY_CLASSES, _OWN_CLASSES = 1000, 10
_MOST_PIXELS = 1 << 26


@dataclass(frozen=True)
class About:
    """All that is needed to build a network again and to create an input for it."""

    name: str
    num_classes: int
    in_channels: int
    image_size: int
    args: dict[str, Any] = field(default_factory=dict)
    features: int | None = None  # input features, if the network takes vectors and not images

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as stored in a file's metadata."""
        return {key: value for key, value in asdict(self).items() if key != "features" or value is not None}

    @classmethod
    def from_dict(cls, value: Any, source: object) -> About:
        """Check a description from a file.

        Args:
            value: The parsed JSON.
            source: The file, for the message.

        Returns:
            The description.

        Raises:
            ModelError: It is not what `to_dict` returns, or a value is out of range.
        """
        keys = set(cls.__dataclass_fields__) - {"features"}
        if not isinstance(value, Mapping) or set(value) - {"features"} != keys or not isinstance(value["name"], str):
            raise ModelError(f"{source} does not say which model it belongs to ({', '.join(sorted(keys))}): name it.")
        counts = {key: value[key] for key in ("num_classes", "in_channels", "image_size", "features") if key in value}
        for key, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1 << 20:
                raise ModelError(f"{source} says {key}={str(count)[:40]!r}, which no model has: use another copy.")
        about = cls(value["name"], **counts, args=check_args(value["name"], value["args"]))
        about.example_shape()
        return about

    def example_shape(self) -> tuple[int, ...]:
        """Return the shape of an input with batch size 1.

        Raises:
            ModelError: The input would be too large.
        """
        if self.features is not None:
            return 1, self.features
        shape = (self.in_channels, self.image_size, self.image_size)
        if math.prod(shape) > _MOST_PIXELS:
            raise ModelError(f"An input of {shape} is more than {_MOST_PIXELS:,} numbers: take smaller images.")
        return 1, *shape

    def build(self) -> nn.Module:
        """Build the untrained network. Nothing is downloaded and no file is read."""
        return _create(self.name, self.num_classes, self.in_channels, self.args)

    def misfit(self, state: Mapping[str, Tensor]) -> str:
        """Describe why weights do not fit this network, before memory is allocated for it.

        Args:
            state: The tensors by name.

        Returns:
            The end of a sentence; empty if they fit.
        """
        network = self.build() if names_user_code(self.name) else shapes(self.build)
        return describe_misfit(network, without_auxiliary(network, state))


def find_about(name: str, args: Mapping[str, Any], state: Mapping[str, Tensor], image_size: int | None = None) -> About:
    """Infer the number of classes and channels of a network from the shapes of its weights.

    Args:
        name: Name of the model.
        args: Arguments of its constructor.
        state: The tensors by name.
        image_size: Height and width of the input, if not the model's own.

    Returns:
        The description.

    Raises:
        ModelError: The model does not exist, or the weights do not fit it.
    """
    args = check_args(name, args)
    misfit = ""
    for tried in _with_sizes(name, args, image_size):
        try:
            if names_user_code(name):  # which may not work on the meta device
                network = _create(name, _CLASSES, _CHANNELS, tried)
            else:
                network = shapes(lambda tried=tried: _create(name, _CLASSES, _CHANNELS, tried))  # type: ignore[misc]
        except ModelError:
            if tried == args:
                raise
            continue  # the model does not accept this size
        classes, channels = _counts(network, state)
        about = About(name, classes, channels, input_size(name, tried, network), tried)
        if names_user_code(name):
            about = _of_user_code(about, network)
        misfit = misfit or about.misfit(state)
        if not about.misfit(state):
            return about if image_size is None else replace(about, image_size=image_size)
    raise ModelError(f"The weights do not fit {name}: {misfit}.")


def untrained(name: str, image_size: int | None = None) -> tuple[nn.Module, About]:
    """Create an untrained model by name.

    Args:
        name: Name of the model.
        image_size: Height and width of the input, if not the model's own.

    Returns:
        The model with its library's number of classes, and its description.
    """
    classes = _LIBRARY_CLASSES if ":" in name else _OWN_CLASSES
    model = _create(name, classes, _CHANNELS, {}).eval()
    about = About(name, classes, _CHANNELS, image_size or input_size(name, {}, model))
    return model, _of_user_code(about, model) if names_user_code(name) else about


def _of_user_code(about: About, network: nn.Module) -> About:
    """Take the input from the network's first layer, because its factory may ignore the number of channels."""
    return replace(about, in_channels=input_channels(network) or about.in_channels, features=input_features(network))


def shapes(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network whose parameters have shapes but no memory.

    Args:
        build: Creates the network.

    Returns:
        The network, on the meta device.
    """
    try:
        with torch.device("meta"):
            return build()
    except NotImplementedError:  # the constructor needs the values of tensors
        with _NoMemory():
            return build()


class _NoMemory(TorchFunctionMode):
    """Creates parameters on the meta device, and other tensors as usual."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones) and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _create(name: str, num_classes: int, in_channels: int, args: Mapping[str, Any]) -> nn.Module:
    try:
        return create_model(name, num_classes, in_channels, pretrained=False, **args)
    except (ModelError, ImportError, NotImplementedError):
        raise
    except Exception as error:  # constructors raise all kinds of errors
        reason = one_line(error, 200)
        raise ModelError(f"{name} cannot be built with {dict(args)} ({type(error).__name__}: {reason}).") from None


def _with_sizes(name: str, args: dict[str, Any], image_size: int | None) -> Iterator[dict[str, Any]]:
    """The arguments, then the same with other image sizes, because learned positions depend on the size."""
    yield args
    key = "img_size" if name.startswith("timm:") else "image_size"
    if key not in args and name.startswith(("timm:", "torchvision:")):
        for size in dict.fromkeys([*([image_size] if image_size else []), *other_sizes(name)]):
            yield {**args, key: size}


def _counts(network: nn.Module, state: Mapping[str, Tensor]) -> tuple[int, int]:
    """Classes and channels, by the first dimensions that differ from a network with `_CLASSES` and `_CHANNELS`."""
    classes, channels = _CLASSES, _CHANNELS
    for name, own in network.state_dict().items():
        theirs = state.get(name)
        if theirs is None or theirs.ndim != own.ndim or theirs.shape == own.shape:
            continue
        if classes == _CLASSES and own.shape[0] % _CLASSES == 0:
            classes = max(theirs.shape[0] * _CLASSES // own.shape[0], 1)
        elif channels == _CHANNELS and own.ndim > 1 and own.shape[1] % _CHANNELS == 0:
            channels = max(theirs.shape[1] * _CHANNELS // own.shape[1], 1)
    return classes, channels
