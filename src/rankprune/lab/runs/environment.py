"""The environment of a run: versions, processor, threads."""

from __future__ import annotations

import importlib.util
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import rankprune

# For each extra, what it adds and the modules that it installs.
EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "train": ("recipes, the trainer, progress bars", ("pydantic", "yaml", "rich", "torchvision", "timm")),
    "vision": ("torchvision: and timm: models, image folders, EMA", ("torchvision", "timm")),
    "detection": ("COCO and its average precision", ("faster_coco_eval", "torchvision", "PIL")),
    "tensorboard": ("scalars of each run for TensorBoard", ("tensorboard",)),
    "report": ("the report page, the live page, figures", ("plotly", "matplotlib", "PIL")),
    "onnx": ("export to ONNX", ("onnx", "onnxscript", "onnxruntime")),
    "lightning": ("a callback for Lightning", ("lightning",)),
    "transformers": ("a callback for Hugging Face's Trainer", ("transformers", "accelerate")),
    "accelerate": ("pruning in Accelerate's loops", ("accelerate",)),
    "ray": ("sweeps on a Ray cluster", ("ray",)),
}
_DISTRIBUTIONS = {"yaml": "pyyaml", "faster_coco_eval": "faster-coco-eval", "PIL": "pillow"}


def environment(processes: int = 1) -> dict[str, Any]:
    """Return versions and hardware, for environment.json and `rankprune doctor`.

    Args:
        processes: Number of processes of the run.

    Returns:
        A mapping that JSON can hold.
    """
    return {
        "rankprune": rankprune.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: _version(name) for name in ("numpy", "safetensors")},
    }


def extras() -> list[dict[str, Any]]:
    """Return what each extra adds and the versions of its libraries (None if one is not installed)."""
    return [
        {"extra": extra, "brings": brings, "packages": {module: _version(module) for module in modules}}
        for extra, (brings, modules) in EXTRAS.items()
    ]


def _version(module: str) -> str | None:
    if importlib.util.find_spec(module) is None:
        return None
    try:
        return version(_DISTRIBUTIONS.get(module, module))
    except PackageNotFoundError:
        return "unknown"


def cpu_name() -> str:
    """Return the processor's name as the operating system reports it."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
