"""`rankprune export`."""

from __future__ import annotations

import argparse

from rankprune.lab.bench.export import Values, export

from .models import allow
from .output import check_file, emit, note

_VALUES: dict[str, Values] = {"exact": "exact", "fp16": "float16", "bf16": "bfloat16"}


def run(args: argparse.Namespace) -> int:
    """Export a run or a file of weights.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    if args.out is not None:
        check_file(args.out)
    result = export(
        args.run_or_file,
        args.to,
        args.out,
        model=allow(args.model),
        values=_VALUES[args.dtype],
        sparse_initializer=args.sparse_initializer,
        batch=args.batch,
        threads=args.threads,
        image_size=args.image_size,
        say=note,
    )
    return emit(args.json, result.to_dict(), str(result))
