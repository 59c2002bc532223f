"""Models by name: the CIFAR networks of the pruning literature, and any model of torchvision or timm."""

from __future__ import annotations

from . import cifar_resnet, detection, vgg, vit  # noqa: F401  importing registers the names
from .about import About, find_about, untrained
from .errors import ModelError, WeightsError
from .registry import create_model, is_model_name, list_models
from .user_code import names_user_code, register_user_model
from .weights import load_weights

__all__ = [
    "About",
    "ModelError",
    "WeightsError",
    "create_model",
    "find_about",
    "is_model_name",
    "list_models",
    "load_weights",
    "names_user_code",
    "register_user_model",
    "untrained",
]
