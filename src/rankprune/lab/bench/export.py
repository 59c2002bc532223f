"""Exports a trained network to a file: compact or plain weights, ONNX, or a plan of the sparse engine."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from rankprune.engine import compile as compiled
from rankprune.engine import runtime
from rankprune.engine.backend.engine import thread_count
from rankprune.engine.program import torch_threads
from rankprune.formats import save
from rankprune.formats.dense import save_dense
from rankprune.formats.onnx import save_onnx
from rankprune.lab.models import About, load_weights
from rankprune.lab.progress import Say, Steps, silent
from rankprune.lab.runs.open_model import at_least_one, must_exist, open_model
from rankprune.lab.runs.run_folder import writing

from .benchmark import ROUNDS, Row, check_runs, in_turns, ours
from .peers import Absent, Run, joined, onnx_file, onnxruntime, timed, torch_eager

Target = Literal["sparse", "safetensors", "onnx", "engine"]
Values = Literal["exact", "float16", "bfloat16"]
SUFFIX = {"sparse": ".sparse.safetensors", "safetensors": ".safetensors", "onnx": ".onnx", "engine": ".plan"}


@dataclass(frozen=True)
class Exported:
    """The file that was written, and the network's latency on each engine.

    Attributes:
        to: Kind of file.
        file: Its path.
        dense_bytes: Size of the dense weights.
        file_bytes: Size of the file.
        rows: Latency on torch, ONNX Runtime and the sparse engine; an engine that can read the file runs the file.
        absent: Engines that could not be measured, with the reason.
        error: Largest difference of the file's outputs from torch's, relative to their largest absolute value.
    """

    to: Target
    file: str
    dense_bytes: int
    file_bytes: int
    rows: tuple[Row, ...]
    absent: dict[str, str]
    error: float
    batch: int
    threads: int
    rounds: int

    def row(self, name: str) -> Row | None:
        """Return the latency on one engine.

        Args:
            name: The engine.

        Returns:
            Its row; None if it was not measured.
        """
        return next((row for row in self.rows if row.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        size = self.dense_bytes / self.file_bytes
        smaller = f"{size:.1f} x smaller" if size > 1.02 else "not smaller"
        share = f"{100 * self.file_bytes / self.dense_bytes:.1f} %"
        lines = [
            f"wrote {self.file}: {self.file_bytes:,} bytes, {share} of the dense weights' {self.dense_bytes:,}",
            f"batch {self.batch}, {self.threads} threads, {self.rounds} interleaved rounds",
            f"{'':<14} {'min ms':>9} {'median ms':>10} {'10-90 % of rounds':>18}",
        ]
        for row in self.rows:
            spread = f"{row.low * 1e3:.3g} - {row.high * 1e3:.3g}"
            lines.append(f"{row.name:<14} {row.minimum * 1e3:>9.3g} {row.median * 1e3:>10.3g} {spread:>18}")
        lines += [f"{name} is left out: {why}" for name, why in self.absent.items()]
        lines += [
            f"{smaller}, {self._speed()}",
            f"largest difference from torch's outputs: {self.error:.1e} of their largest value",
        ]
        return "\n".join(lines)

    def _speed(self) -> str:
        ours, others = self.row("rankprune"), [row for row in self.rows if row.name != "rankprune"]
        if ours is None:
            return "not timed on the sparse engine"
        # "Faster" must hold by the minimum and by the median, which disagree on a busy machine.
        ratios = {r.name: min(r.median / ours.median, r.minimum / ours.minimum) for r in others}
        parts = [
            f"{ratio:.2f} x faster than {name}" if ratio > 1.02 else f"not faster than {name}"
            for name, ratio in ratios.items()
        ]
        return f"on the sparse engine {' and '.join(parts)}"


def export(
    path: str | Path,
    to: Target,
    out: str | Path | None = None,
    *,
    model: str | None = None,
    values: Values = "exact",
    sparse_initializer: bool = False,
    batch: int = 1,
    threads: int | None = None,
    image_size: int | None = None,
    say: Say = silent,
) -> Exported:
    """Export a network to a file, read it back, and measure it on the sparse engine, torch and ONNX Runtime.

    Args:
        path: A run folder or a weights file.
        to: "sparse", "safetensors", "onnx" or "engine".
        out: The file to write; by default in the run's folder, or beside the weights file.
        model: Name of the model, if the weights file does not say.
        values: Precision of the values in a "sparse" file.
        sparse_initializer: Leave the zeros out of an "onnx" file.
        batch: Batch size to tune for and measure.
        threads: Threads of every engine; by default the cores that this process may use.
        image_size: Height and width of the input, if not those that the file says.
        say: Called with sentences about the progress.

    Returns:
        Size, error and latency of the file.

    Raises:
        ValueError: An argument is wrong, or the network cannot be opened or written.
        RunError: The file cannot be written.
    """
    _check(to, values, sparse_initializer, batch=batch, threads=threads, image_size=image_size)
    source = Path(path)
    must_exist(source)
    target = _target(source, to, out)
    network, example, about = open_model(source, model, image_size)
    example = example.expand(batch, *example.shape[1:]).contiguous()
    threads = thread_count(threads)
    check_runs(network, example)
    steps = Steps(4, say)
    with torch_threads(threads), tempfile.TemporaryDirectory() as folder:
        engines: dict[str, Run] = {"torch": torch_eager(network, example, threads, Path(folder), None)}
        absent: dict[str, str] = {}
        steps.next(f"writing {target.name}")
        if to == "onnx":
            with writing(target):
                error = save_onnx(network, example, target, sparse_initializer=sparse_initializer)
            again = network
        else:
            error, again = 0.0, _written(network, about, to, target, values)
        steps.next("preparing ONNX Runtime")
        try:
            engines["onnxruntime"] = (
                onnx_file(target, threads)
                if to == "onnx"
                else onnxruntime(network, example, threads, Path(folder), None)
            )
        except Absent as reason:
            absent["onnxruntime"] = str(reason)
        steps.next("compiling for the sparse engine, which measures kernels layer by layer")
        try:
            plan = compiled.compile(again, example, threads)
            engines["rankprune"] = ours(plan)
            if to == "engine":
                with writing(target):
                    plan.save(target)
                loaded = runtime.load(target, threads)
                engines["rankprune"] = lambda x: timed(lambda: joined(loaded(x)))
        except (ValueError, ImportError) as reason:
            if to == "engine":
                raise
            absent["rankprune"] = str(reason)
        steps.next(f"timing {', '.join(engines)}, {ROUNDS} interleaved rounds")
        runs = {**engines, "file": torch_eager(again, example, threads, Path(folder), None)}
        rows = in_turns(network, runs, example.shape, ROUNDS)
    runner = {"onnx": "onnxruntime", "engine": "rankprune"}.get(to, "file")
    error = max(error, *(row.error for row in rows if row.name == runner))
    dense = sum(t.numel() * t.element_size() for t in network.state_dict().values())
    shown = tuple(row for row in rows if row.name != "file")
    return Exported(to, str(target), dense, target.stat().st_size, shown, absent, error, batch, threads, ROUNDS)


def _written(network: nn.Module, about: About, to: Target, target: Path, values: Values) -> nn.Module:
    """Write a weights file and return the network with the file's weights; a plan is written after compiling."""
    if to == "engine":
        return network
    with writing(target):
        if to == "sparse":
            save(network, target, values=values, about=about.to_dict())
        else:
            save_dense(network, target, about=about.to_dict())
    return load_weights(copy.deepcopy(network), target)


def _check(to: str, values: str, sparse_initializer: bool, **counts: int | None) -> None:
    if to not in SUFFIX:
        raise ValueError(f"There is no target {to!r}: choose among {', '.join(SUFFIX)}.")
    if values != "exact" and to != "sparse":
        raise ValueError(f"Values in {values} are for sparse files, not for {to}: leave them out or export to sparse.")
    if sparse_initializer and to != "onnx":
        raise ValueError(f"A sparse initializer is for ONNX files, not for {to}: leave it out or export to onnx.")
    at_least_one(**counts)


def _target(source: Path, to: Target, out: str | Path | None) -> Path:
    """The file to write; by default in the run's folder, or beside the weights file."""
    if out is None:
        folder, stem = (source, "export") if source.is_dir() else (source.parent, source.stem.removesuffix(".sparse"))
        target = folder / (stem + SUFFIX[to])
    else:
        target = Path(out)
    target = weights_file(target) if to in ("sparse", "safetensors") else _new_file(target)
    if target.exists() and target.samefile(source):
        raise ValueError(f"{target} is the input file: give another file to write.")
    return target


def weights_file(path: str | Path) -> Path:
    """Check before the work that a file name is suitable for weights.

    Args:
        path: The file.

    Returns:
        The path.

    Raises:
        ValueError: The name does not end in .safetensors, or the file cannot be there.
    """
    if Path(path).suffix != ".safetensors":
        raise ValueError(f"{path} cannot hold weights: give a name that ends in .safetensors.")
    return _new_file(Path(path))


def _new_file(path: Path) -> Path:
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file.")
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent} to write {path.name} in: create it first.")
    return path
