"""`rankprune report`, `rankprune watch` and `rankprune figures`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from rankprune.lab.bench.latency import measure_all
from rankprune.lab.report.collect import Collector
from rankprune.lab.report.runs import find

from .models import allow
from .output import check_file, check_folder, emit, note


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: The parsed arguments.

    Returns:
        The exit code.
    """
    return {"report": _report, "watch": _watch, "figures": _figures}[args.command](args)


def _report(args: argparse.Namespace) -> int:
    from rankprune.lab.report.page import write_page

    out = check_file(args.out)
    allow(args.model)
    if args.engine:
        measure_all(find(args.runs), note)
    data = Collector(args.runs, engine=args.engine).collect(note)
    size = write_page(data, out)
    value = {"out": args.out, "bytes": size, "runs": len(data["runs"])}
    runs = f"{len(data['runs'])} run{'s' * (len(data['runs']) != 1)}"
    return emit(
        args.json, value, f"{args.out}: {runs}, {size / 1e6:.1f} MB, needs no network: {out.resolve().as_uri()}"
    )


def _watch(args: argparse.Namespace) -> int:
    import torch

    from rankprune.lab.report.live import Server

    allow(args.model)
    torch.set_num_threads(1)  # leaves the CPU to the run
    with Server(args.runs, args.host, args.port) as server, contextlib.suppress(KeyboardInterrupt):
        os.nice(10)
        emit(args.json, {"url": server.url}, f"{server.url} shows the run; Ctrl-C stops this page, not the run")
        sys.stdout.flush()
        server.serve_forever()
    with contextlib.suppress(KeyboardInterrupt):  # pressed twice
        if not server.still_looking(seconds=0.5):
            return 0
    # A thread is still inside a decomposition, and the interpreter would abort if it shut down now. This process
    # writes no files, so it can exit immediately.
    sys.stderr.flush()
    os._exit(0)


def _figures(args: argparse.Namespace) -> int:
    from rankprune.lab.report.figures import write_figures

    out = Path(check_folder(args.out))
    allow(args.model)
    files = [str(path) for path in write_figures(Collector(args.runs).collect(note), out)]
    return emit(args.json, files, "\n".join(files))
