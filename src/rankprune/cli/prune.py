"""`rankprune prune`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rankprune.core.method import method_info
from rankprune.core.oneshot import prune
from rankprune.formats import save
from rankprune.lab.bench.export import weights_file
from rankprune.lab.runs.open_model import open_model
from rankprune.lab.runs.run_folder import writing

from .models import allow
from .output import check_file, emit


def run(args: argparse.Namespace) -> int:
    """Prune a file of weights and save it.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    out = weights_file(check_file(args.out))
    if not method_info(args.method).needs.isdisjoint(("data", "loss")):
        raise ValueError(
            f"{args.method} needs training data, which this command does not read: use --method lamp, or "
            f"rankprune.prune(model, {args.method!r}, data=..., loss_fn=...) in Python."
        )
    model, _, about = open_model(Path(args.checkpoint), allow(args.model), args.image_size)
    report = prune(model, args.method, sparsity=args.sparsity, distribution=args.distribution, seed=args.seed)
    with writing(out):
        save(model, out, about=about.to_dict())
    size = out.stat().st_size
    layers = [{"name": layer.name, "kept": layer.kept, "total": layer.total} for layer in report.layers]
    value = {"file": str(out), "bytes": size, "kept": report.kept, "total": report.total, "sparsity": report.sparsity}
    return emit(args.json, {**value, "layers": layers}, f"{report}\n\nsaved {out} ({size:,} bytes)")
