"""`rankprune bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankprune.engine.benchmark import benchmark
from rankprune.models import create_model
from rankprune.training.weights import at_least_one, open_model

from .output import emit


def run(args: argparse.Namespace) -> int:
    import torch

    at_least_one(batch=args.batch, threads=args.threads, image_size=args.image_size)
    path = Path(args.model_or_file)
    if path.exists() or path.suffix or path.name != args.model_or_file.rpartition(":")[2]:  # no model has such a name
        model, example = open_model(path, args.model, args.image_size)
    else:
        size = args.image_size or (224 if ":" in args.model_or_file else 32)
        model, example = create_model(args.model_or_file).eval(), torch.zeros(1, 3, size, size)
    example = example.expand(args.batch, *example.shape[1:]).contiguous()
    against = [name for name in args.against.split(",") if name]
    found = benchmark(model, example, against, args.threads, args.deepsparse)
    return emit(args.json, found.to_dict(), str(found))
