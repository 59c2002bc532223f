"""Models by name: the CIFAR networks of the pruning literature, and any model of torchvision or timm."""

from __future__ import annotations

from rankprune.models import cifar_resnet, detection, vgg, vit  # noqa: F401  importing registers the names
from rankprune.models.about import About, find_about, untrained
from rankprune.models.errors import ModelError, WeightsError
from rankprune.models.registry import create_model, is_model_name, list_models
from rankprune.models.weights import load_weights

__all__ = [
    "About",
    "ModelError",
    "WeightsError",
    "create_model",
    "find_about",
    "is_model_name",
    "list_models",
    "load_weights",
    "untrained",
]
