"""Models of torchvision and timm behind one small interface."""

from __future__ import annotations

import inspect
from typing import Any, Protocol
from urllib.error import URLError

from torch import nn

from rankprune._util import need

from .errors import WeightsError


class Library(Protocol):
    """A library of models."""

    def names(self) -> list[str]:
        """Return the names of all models."""

    def has(self, name: str) -> bool:
        """Whether the library has a model.

        Args:
            name: Name of the model.

        Returns:
            True if it has.
        """

    def create(self, name: str, num_classes: int, in_channels: int, pretrained: bool | str, **kwargs: Any) -> nn.Module:
        """Create a model.

        Args:
            name: Name of the model.
            num_classes: Number of classes.
            in_channels: Input channels.
            pretrained: Download the default weights, or those of this name.
            **kwargs: Further arguments of its constructor.

        Returns:
            The model.
        """


class Torchvision:
    """torchvision.models: classification, segmentation and detection by their registered names."""

    @staticmethod
    def _models() -> Any:
        return need("torchvision.models", "vision", "A torchvision: model")

    def names(self) -> list[str]:
        """Return the names of all models."""
        return list(self._models().list_models())

    def has(self, name: str) -> bool:
        """Whether torchvision has a model.

        Args:
            name: Name of the model.

        Returns:
            True if it has.
        """
        return name in self.names()

    def create(self, name: str, num_classes: int, in_channels: int, pretrained: bool | str, **kwargs: Any) -> nn.Module:
        """Create a model; see `Library.create`.

        Args:
            name: Name of the model.
            num_classes: Number of classes.
            in_channels: Input channels.
            pretrained: Download the default weights, or those of this name.
            **kwargs: Further arguments of its constructor.

        Returns:
            The model.
        """
        models = self._models()
        # Detection and segmentation builders download a pretrained backbone by default.
        if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
            kwargs.setdefault("weights_backbone", None)
        if name in ("googlenet", "inception_v3"):
            # With auxiliary heads these return a tuple in training, which ordinary losses do not accept.
            kwargs = {"aux_logits": False, "init_weights": True, **kwargs}
            if pretrained and in_channels == 3:  # the weights expect another normalization, which the model applies
                kwargs.setdefault("transform_input", True)
        model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **kwargs)
        if in_channels != 3:
            _widen_input(model, in_channels)
        if pretrained:
            load_torchvision(model, name, pretrained)
        return model


def load_torchvision(model: nn.Module, name: str, pretrained: bool | str) -> None:
    """Load torchvision's weights into a model. Tensors of other shapes (such as the classifier's) keep their values.

    Args:
        model: The model.
        name: torchvision's name of the network.
        pretrained: True for the default weights, or their name.

    Raises:
        WeightsError: There are no such weights, or they cannot be downloaded.
    """
    known = need("torchvision.models", "vision", "A torchvision: model").get_model_weights(name)
    try:
        weights = known[pretrained] if isinstance(pretrained, str) else known.DEFAULT
    except KeyError:
        names = ", ".join(known.__members__)
        raise WeightsError(f"torchvision:{name} has no weights {pretrained!r}: there are {names}.") from None
    try:
        state = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the hash of the downloaded file is wrong
        raise _no_download(f"torchvision:{name}", error) from error
    own = model.state_dict()
    fitting = {key: value for key, value in state.items() if key in own and own[key].shape == value.shape}
    model.load_state_dict(fitting, strict=False)


class Timm:
    """timm: every registered architecture, with or without a pretrained tag."""

    @staticmethod
    def _timm() -> Any:
        return need("timm", "vision", "A timm: model")

    def names(self) -> list[str]:
        """Return the names of all models."""
        return list(self._timm().list_models())

    def has(self, name: str) -> bool:
        """Whether timm has a model.

        Args:
            name: Name of the model.

        Returns:
            True if it has.
        """
        return bool(self._timm().is_model(name))

    def create(self, name: str, num_classes: int, in_channels: int, pretrained: bool | str, **kwargs: Any) -> nn.Module:
        """Create a model; see `Library.create`.

        Args:
            name: Name of the model.
            num_classes: Number of classes.
            in_channels: Input channels.
            pretrained: Download the default weights, or those of this tag.
            **kwargs: Further arguments of its constructor.

        Returns:
            The model.

        Raises:
            WeightsError: There are no such weights, or they cannot be downloaded.
        """
        if isinstance(pretrained, str):
            tags = self._timm().list_pretrained(f"{name}.*")
            if f"{name}.{pretrained}" not in tags:
                known = ", ".join(tag.partition(".")[2] for tag in tags) or "none"
                raise WeightsError(f"timm:{name} has no weights {pretrained!r}: there are {known}.")
            name, pretrained = f"{name}.{pretrained}", True  # timm appends the tag after a dot
        try:
            model: nn.Module = self._timm().create_model(
                name, pretrained=pretrained, num_classes=num_classes, in_chans=in_channels, **kwargs
            )
        except OSError as error:
            raise _no_download(f"timm:{name}", error) from error
        return model


LIBRARIES: dict[str, Library] = {"torchvision": Torchvision(), "timm": Timm()}


def _widen_input(model: nn.Module, in_channels: int) -> None:
    """Replace the first convolution by one with `in_channels` and otherwise equal settings."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            parent = model.get_submodule(name.rpartition(".")[0])
            new = nn.Conv2d(
                in_channels,
                module.out_channels,
                module.kernel_size,  # type: ignore[arg-type]
                module.stride,  # type: ignore[arg-type]
                module.padding,  # type: ignore[arg-type]
                module.dilation,  # type: ignore[arg-type]
                bias=module.bias is not None,
                padding_mode=module.padding_mode,
            )
            setattr(parent, name.rpartition(".")[2], new)
            return


def _no_download(name: str, error: OSError | RuntimeError) -> WeightsError:
    reason = str(error.reason if isinstance(error, URLError) else error).partition(". ")[0].partition("\n")[0]
    return WeightsError(
        f"The pretrained weights of {name} could not be fetched ({reason or type(error).__name__}): "
        "leave pretrained out, or load a local file with load_weights(model, path)."
    )
