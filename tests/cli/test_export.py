"""`rankprune export`: every kind of file, read by another reader than the writer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import rankprune as rp
from _runs import run as train
from _runs import small
from rankprune.cli import main
from rankprune.engine import runtime
from rankprune.lab.runs.open_model import open_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small("fashion-rpg-90", "epochs=1"), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="module")
def model(folder: Path) -> nn.Module:
    return open_model(folder)[0]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rankprune.engine.backend.tuning as tuning

    monkeypatch.setattr(tuning, "cache_folder", lambda: tmp_path)


def export(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["export", *argv, "--threads", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert all(line.startswith("rankprune: ") for line in err.splitlines())  # how far it is
    return json.loads(out)


def dense_bytes(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def test_sparse(folder: Path, model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    found = export(capsys, str(folder), "--to", "sparse")
    file = folder / "export.sparse.safetensors"
    assert found["file"] == str(file)
    assert found["dense_bytes"] == dense_bytes(model)
    assert found["file_bytes"] == file.stat().st_size
    assert found["error"] == 0
    assert {row["name"] for row in found["rows"]} == {"torch", "onnxruntime", "rankprune"}
    for row in found["rows"]:
        assert 0 < row["minimum"] <= row["low"] <= row["median"] <= row["high"]
    state = rp.load(file)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_sparse_in_half_precision(
    dtype: str, folder: Path, model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = export(capsys, str(folder), "--to", "sparse", "--out", str(tmp_path / "e.safetensors"))
    half = export(capsys, str(folder), "--to", "sparse", "--dtype", dtype, "--out", str(tmp_path / "h.safetensors"))
    kept = int(model.conv2.weight.count_nonzero())
    assert half["file_bytes"] <= exact["file_bytes"] - 2 * kept
    assert 0 < half["error"] < 0.05
    state = rp.load(tmp_path / "h.safetensors")
    assert torch.equal(state["conv2.weight"] == 0, model.conv2.weight == 0)


def test_safetensors_is_vanilla(folder: Path, model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    found = export(capsys, str(folder), "--to", "safetensors")
    state = load_file(found["file"])
    assert found["file_bytes"] > dense_bytes(model)
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_onnx_equals_torch(folder: Path, model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    dense = export(capsys, str(folder), "--to", "onnx")
    sparse = export(capsys, str(folder), "--to", "onnx", "--sparse-initializer", "--out", str(tmp_path / "s.onnx"))
    for found in (dense, sparse):
        assert found["error"] < 1e-5
        # The full check is shape inference too, which knows no operator that takes a sparse weight; ONNX Runtime does.
        onnx.checker.check_model(onnx.load(found["file"]), full_check=found is dense)
        session = ort.InferenceSession(found["file"], providers=["CPUExecutionProvider"])
        assert session.get_inputs()[0].name == "input"
        for batch in (1, 2, 5):
            x = torch.randn(batch, 1, 14, 14)
            (got,) = session.run(None, {"input": x.numpy()})
            np.testing.assert_allclose(got, model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    graph = onnx.load(sparse["file"]).graph
    kept = {s.values.name: s.values.dims[0] for s in graph.sparse_initializer}
    assert int(model.conv2.weight.count_nonzero()) in kept.values()
    saved = sum(4 * int(np.prod(s.dims)) - 12 * s.values.dims[0] for s in graph.sparse_initializer)
    assert saved > 0
    assert abs(sparse["file_bytes"] - (dense["file_bytes"] - saved)) < 200 * len(kept)  # names and shapes
    assert b"site-packages" not in (folder / "export.onnx").read_bytes()


@pytest.mark.parametrize("library", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_library_is_named(
    library: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not installed
    assert main(["export", str(folder), "--to", "onnx", "--out", str(tmp_path / "m.onnx")]) == 2
    err = capsys.readouterr().err
    assert f"needs {library}," in err
    assert "pip install 'rankprune[onnx]'" in err
    assert list(tmp_path.iterdir()) == []


def test_engine_runs_from_the_file(folder: Path, model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    found = export(capsys, str(folder), "--to", "engine", "--batch", "2")
    network = runtime.load(found["file"], threads=1)
    assert network.input_shapes == [(1, 14, 14)]
    x = torch.randn(3, 1, 14, 14)
    np.testing.assert_allclose(network(x.numpy()), model(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert found["batch"] == 2
    assert found["error"] < 1e-4


def test_what_a_person_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "--to", "sparse", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    for words in ("wrote ", "export.sparse.safetensors", "torch ", "onnxruntime ", "rankprune ", "x smaller", "faster than torch"):
        assert words in out


def test_a_weights_file_of_ones_own(model: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(model.state_dict(), tmp_path / "own.pth")
    named = ["--model", "test-tiny", "--image-size", "14"]
    found = export(capsys, str(tmp_path / "own.pth"), "--to", "sparse", *named)
    assert found["file"] == str(tmp_path / "own.sparse.safetensors")
    found = export(capsys, found["file"], "--to", "safetensors", *named)
    assert found["file"] == str(tmp_path / "own.safetensors")
    before = (tmp_path / "own.safetensors").read_bytes()
    assert main(["export", found["file"], "--to", "safetensors", *named]) == 2
    assert "is the input file" in capsys.readouterr().err
    assert (tmp_path / "own.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--to", "onnx", "--dtype", "fp16"], ["float16", "onnx", "sparse"]),
        (["--to", "engine", "--sparse-initializer"], ["sparse initializer", "engine"]),
        (["--to", "sparse", "--batch", "0"], ["batch=0"]),
        (["--to", "sparse", "--threads", "-1"], ["threads=-1"]),
        (["--to", "engine", "--image-size", "0"], ["image_size=0"]),
        (["--to", "sparse", "--out", "w.pth"], ["w.pth", ".safetensors"]),
        (["--to", "onnx", "--out", "no/such/folder/m.onnx"], ["no/such/folder", "m.onnx"]),
        (["--to", "onnx", "--out", "."], ["is a folder"]),
        (["--to", "sparse", "--model", "no-such-model"], ["no-such-model"]),
    ],
)
def test_bad_arguments_are_one_sentence(
    argv: list[str], words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(folder), *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in words), err


def test_a_run_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "absent"), "--to", "onnx"]) == 2
    assert "no run folder or weights file" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "--to", "onnx"]) == 2  # a folder without a finished run
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["export", str(tmp_path), "--to", "tensorrt"]) == 2
    assert "'tensorrt' is unknown" in capsys.readouterr().err


def test_a_folder_that_may_not_be_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "n" * 260 + ".safetensors"  # longer than file systems take
    assert main(["export", str(folder), "--to", "sparse", "--out", str(tmp_path / name)]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.glob("*n.safetensors")) == []
