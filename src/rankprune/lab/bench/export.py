"""A trained network as a file for others: compact or plain weights, ONNX, or a plan of the sparse engine."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from rankprune.engine import compile as compiled
from rankprune.engine import runtime
from rankprune.engine.backend.engine import thread_count
from rankprune.engine.program import torch_threads
from rankprune.formats import save
from rankprune.formats.dense import save_dense
from rankprune.formats.onnx import save_onnx
from rankprune.lab.models import About, load_weights
from rankprune.lab.runs.open_model import at_least_one, must_exist, open_model
from rankprune.lab.runs.run_folder import writing

from .benchmark import Row, in_turns
from .peers import Run, joined, onnx_file, timed, torch_eager

Target = Literal["sparse", "safetensors", "onnx", "engine"]
Values = Literal["exact", "float16", "bfloat16"]
SUFFIX = {"sparse": ".sparse.safetensors", "safetensors": ".safetensors", "onnx": ".onnx", "engine": ".plan"}
ROUNDS = 15


@dataclass(frozen=True)
class Exported:
    """The file, and the network before (dense weights, in torch) and after (as the file is run)."""

    to: Target
    file: str
    runner: str
    dense_bytes: int
    file_bytes: int
    before: Row
    after: Row
    batch: int
    threads: int
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        size = self.dense_bytes / self.file_bytes
        # Faster is what both the least and the middle time say: on a busy machine they disagree.
        speed = min(self.before.median / self.after.median, self.before.minimum / self.after.minimum)
        smaller = f"{size:.1f} x smaller" if size > 1.02 else "not smaller"
        faster = f"{speed:.2f} x faster" if speed > 1.02 else "not faster"
        if self.runner == "torch":  # the same work twice: a difference is chance
            faster = "not faster (torch multiplies by zeros too: --to engine does not)"
        lines = [
            f"wrote {self.file}",
            f"batch {self.batch}, {self.threads} threads, {self.rounds} rounds in turns",
            f"{'':<20} {'bytes':>13} {'of dense':>9} {'min ms':>9} {'median ms':>10}",
            self._line("before: torch", self.dense_bytes, self.before),
            self._line(f"after: {self.runner}", self.file_bytes, self.after),
            f"{smaller}, {faster}",
            f"outputs differ from torch's by {self.after.error:.1e} of their scale at most",
        ]
        return "\n".join(lines)

    def _line(self, name: str, size: int, row: Row) -> str:
        share = f"{size / self.dense_bytes:.1%}"
        return f"{name:<20} {size:>13,} {share:>9} {row.minimum * 1e3:>9.2f} {row.median * 1e3:>10.2f}"


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
) -> Exported:
    """Export a run folder, or a weights file with its model's name; the file is read back and timed beside torch.

    `values` is of "sparse" files, `sparse_initializer` of "onnx". The network is optimised for, and timed at, `batch`.
    """
    _check(to, values, sparse_initializer, batch=batch, threads=threads, image_size=image_size)
    source = Path(path)
    must_exist(source)
    target = _target(source, to, out)
    network, example, about = open_model(source, model, image_size)
    example = example.expand(batch, *example.shape[1:]).contiguous()
    threads = thread_count(threads)
    with torch_threads(threads):
        runner, run, error = _write(network, example, about, to, target, values, sparse_initializer, threads)
        engines = {"before": torch_eager(network, example, threads, target.parent, None), "after": run}
        before, after = in_turns(network, engines, example.shape, ROUNDS)
    after = replace(after, error=max(after.error, error))
    dense = sum(t.numel() * t.element_size() for t in network.state_dict().values())
    return Exported(to, str(target), runner, dense, target.stat().st_size, before, after, batch, threads, ROUNDS)


def _write(
    network: nn.Module,
    example: Tensor,
    about: About,
    to: Target,
    target: Path,
    values: Values,
    sparse: bool,
    threads: int,
) -> tuple[str, Run, float]:
    """Write the file; return what runs it, how, and the error that a check has found."""
    if to == "onnx":
        with writing(target):
            error = save_onnx(network, example, target, sparse_initializer=sparse)
        return "onnxruntime", onnx_file(target, threads), error
    if to == "engine":
        plan = compiled.compile(network, example, threads)
        with writing(target):
            plan.save(target)
        loaded = runtime.load(target, threads)
        return "engine", lambda x: timed(lambda: joined(loaded(x))), 0.0
    with writing(target):
        if to == "sparse":
            save(network, target, values=values, about=about.to_dict())
        else:
            save_dense(network, target, about=about.to_dict())
    again = load_weights(copy.deepcopy(network), target)
    return "torch", torch_eager(again, example, threads, target.parent, None), 0.0


def _check(to: str, values: str, sparse_initializer: bool, **counts: int | None) -> None:
    if to not in SUFFIX:
        raise ValueError(f"There is no target {to!r}: choose among {', '.join(SUFFIX)}.")
    if values != "exact" and to != "sparse":
        raise ValueError(f"Values in {values} are for sparse files, not for {to}: leave that out or export to sparse.")
    if sparse_initializer and to != "onnx":
        raise ValueError(f"A sparse initializer is for ONNX files, not for {to}: leave it out or export to onnx.")
    at_least_one(**counts)


def _target(source: Path, to: Target, out: str | Path | None) -> Path:
    """Where to write: in the run's folder, or beside the weights file, unless told."""
    if out is None:
        folder, stem = (source, "export") if source.is_dir() else (source.parent, source.stem.removesuffix(".sparse"))
        target = folder / (stem + SUFFIX[to])
    else:
        target = Path(out)
    target = weights_file(target) if to in ("sparse", "safetensors") else _new_file(target)
    if target.exists() and target.samefile(source):
        raise ValueError(f"{target} is the file that is read: name another to write.")
    return target


def weights_file(path: str | Path) -> Path:
    """Where weights can be written, before any work is done for them."""
    if Path(path).suffix != ".safetensors":
        raise ValueError(f"{path} is to hold weights, which are read by the name's end: call it .safetensors.")
    return _new_file(Path(path))


def _new_file(path: Path) -> Path:
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder {path.parent} to write {path.name} in: make it first.")
    return path
