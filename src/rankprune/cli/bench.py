"""`rankprune bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankprune.engine.benchmark import benchmark
from rankprune.models import create_model
from rankprune.training.weights import open_model

from .output import emit


def run(args: argparse.Namespace) -> int:
    import torch

    if Path(args.model_or_file).exists():
        model, example = open_model(Path(args.model_or_file), args.model, args.image_size)
    else:
        size = args.image_size or (224 if ":" in args.model_or_file else 32)
        model, example = create_model(args.model_or_file).eval(), torch.zeros(1, 3, size, size)
    example = example.expand(args.batch, *example.shape[1:]).contiguous()
    against = [name for name in args.against.split(",") if name]
    found = benchmark(model, example, against, args.threads, args.deepsparse)
    return emit(args.json, found.to_dict(), str(found))
