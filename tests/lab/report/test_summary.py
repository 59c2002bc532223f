"""The sentence that sums up a sparse run against a dense one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rankprune.lab.bench.latency import LATENCY, Latency, Time
from rankprune.lab.report.compare import FinishedRun, short
from rankprune.lab.report.summary import summary
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.runs.sealed_json import seal

HAS = (
    "With 99.5 % of its weights pruned by rpg, the network has 84.6 % accuracy instead of 86.8 %, "
    "a file of 50 kB instead of 10 MB (200 x smaller)"
)


def finished(source: Path, folder: Path, times: dict[str, float], **changes: object) -> FinishedRun:
    shutil.copytree(source, folder)
    if times:
        latency = Latency({name: Time(ms / 1e3, ms / 1e3, ms / 1e3, ms / 1e3) for name, ms in times.items()}, 2, 15, "a CPU")
        RunFolder(folder).write_json(LATENCY, seal(latency.to_dict()))
    return FinishedRun(folder, replace(RunFolder(source).result(), **changes))


@pytest.mark.parametrize(
    ("dense", "sparse", "end"),
    [
        (
            {"rankprune": 0.4, "torch": 2.0, "onnxruntime": 0.5},
            {"rankprune": 0.125, "torch": 1.9, "onnxruntime": 0.6},
            ", 0.125 ms per image on the sparse engine instead of 0.5 ms in ONNX Runtime (4.0 x faster) and 2 ms in torch.",
        ),
        (
            {"rankprune": 0.4, "torch": 2.0},
            {"rankprune": 0.5, "torch": 2.0},
            ", 0.5 ms per image on the sparse engine instead of 2 ms in torch (4.0 x faster).",
        ),
        (
            {"rankprune": 0.4, "torch": 2.0, "onnxruntime": 0.2},
            {"rankprune": 0.25, "torch": 2.0, "onnxruntime": 0.3},
            ", 0.25 ms per image on the sparse engine instead of 0.2 ms in ONNX Runtime (not faster) and 2 ms in torch.",
        ),
        ({}, {"rankprune": 0.25, "torch": 2.0}, "."),
    ],
)
def test_it_names_accuracy_size_and_latency_of_both(
    runs: Path, tmp_path: Path, dense: dict[str, float], sparse: dict[str, float], end: str
) -> None:
    """The gain is over the faster of torch and ONNX Runtime, each with the dense network."""
    before = finished(next(runs.glob("*-dense-*")), tmp_path / "dense", dense, accuracy_last=0.868, bytes_dense=10_000_000)
    changes = {"accuracy_last": 0.846, "bytes_sparse": 50_000, "sparsity": 0.995}
    after = finished(next(runs.glob("*-rpg-*")), tmp_path / "rpg", sparse, **changes)
    assert summary(before, after) == HAS + end


def test_numbers_are_rounded_before_their_unit_is_chosen() -> None:
    assert [short(value) for value in (999, 999.6, 999_600, 1_234_567, 3e15)] == ["999 ", "1 k", "1 M", "1.23 M", "3e+03 T"]
