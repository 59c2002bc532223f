"""`rankprune bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankprune.lab.bench.benchmark import benchmark
from rankprune.lab.models import is_model_name, untrained
from rankprune.lab.runs.open_model import at_least_one, open_model

from .models import allow
from .output import emit, note


def run(args: argparse.Namespace) -> int:
    """Measure the latency of a run, a file of weights, or a model by name.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    import torch

    at_least_one(batch=args.batch, threads=args.threads, image_size=args.image_size)
    path = Path(args.model_or_file)
    if path.exists() or not is_model_name(args.model_or_file):
        model, example, _ = open_model(path, allow(args.model), args.image_size)
    else:
        model, about = untrained(str(allow(args.model_or_file)), args.image_size)
        example = torch.zeros(about.example_shape())
    example = example.expand(args.batch, *example.shape[1:]).contiguous()
    against = [name for name in args.against.split(",") if name]
    result = benchmark(model, example, against, args.threads, args.deepsparse, say=note)
    return emit(args.json, result.to_dict(), str(result))
