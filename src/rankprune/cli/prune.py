"""`rankprune prune`."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    model, _, about = open_model(Path(args.checkpoint), allow(args.model), args.image_size)
    report = prune(model, args.method, sparsity=args.sparsity, distribution=args.distribution, seed=args.seed)
    with writing(out):
        save(model, out, about=about.to_dict())
    size = out.stat().st_size
    found = {"file": str(out), "bytes": size, "kept": report.kept, "total": report.total, "sparsity": report.sparsity}
    layers = [{"name": layer.name, "kept": layer.kept, "total": layer.total} for layer in report.layers]
    return emit(args.json, {**found, "layers": layers}, f"{report}\n\nsaved {out} ({size:,} bytes)")
