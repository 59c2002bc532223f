"""Other engines behind one call, for comparison: each is a function from a NumPy batch to seconds and outputs."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Run = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Absent(RuntimeError):
    """An engine that is not there; the sentence says how to get it."""


def timed(call: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def torch_eager(model: Callable[..., Any], example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    def run(x: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.inference_mode():
            return timed(lambda: model(torch.from_numpy(x)).numpy())

    return run


def torch_compile(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    return torch_eager(torch.compile(model), example, threads, folder, environment)


def export(model: nn.Module, example: Tensor, folder: Path) -> Path:
    """As ONNX, once; opset 14, the oldest with attention, which every engine compared here reads."""
    path = folder / "model.onnx"
    if not path.exists():
        if importlib.util.find_spec("onnx") is None:
            raise Absent("ONNX files need onnx: pip install 'rankprune[onnx]'")
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # a failure prints the whole network
                torch.onnx.export(model, (example,), str(path), opset_version=14, dynamo=False)
        except Exception as error:
            path.unlink(missing_ok=True)
            raise Absent(f"torch cannot write this model as ONNX ({' '.join(str(error).split())[:120]})") from None
    return path


def onnxruntime(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    if importlib.util.find_spec("onnxruntime") is None:
        raise Absent("onnxruntime is not installed: pip install 'rankprune[onnx]'")
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads must sleep between its turns, or they take the others' cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(str(export(model, example, folder)), options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: timed(lambda: session.run(None, {name: x})[0])


def openvino(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    if importlib.util.find_spec("openvino") is None:
        raise Absent("openvino is not installed: pip install openvino")
    import openvino as ov

    compiled = ov.compile_model(str(export(model, example, folder)), "CPU", {"INFERENCE_NUM_THREADS": threads})
    return lambda x: timed(lambda: compiled(x)[0])


def deepsparse(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    """In a process of its own environment, which is stopped between its turns."""
    if environment is None:
        raise Absent("DeepSparse runs in an environment of its own: give the path of one that has deepsparse==1.8.0")
    python = Path(environment) / "bin" / "python"
    if not python.exists():
        raise Absent(f"there is no {python}: make it with python3 -m venv and pip install deepsparse==1.8.0")
    path = export(model, example, folder)
    worker = [str(python), str(Path(__file__).with_name("deepsparse_worker.py"))]
    arguments = [str(path), str(example.shape[0]), str(threads), str(folder)]
    process = subprocess.Popen(
        [*worker, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "NM_DISABLE_ANALYTICS": "1"},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    if (line := process.stdout.readline()).strip() != "ready":
        process.kill()
        raise Absent(f"DeepSparse of {environment} does not start ({line.strip() or 'it ended'}): try it by itself")
    given, answer = process.stdin, process.stdout

    def run(x: np.ndarray) -> tuple[float, np.ndarray]:
        np.save(folder / "in.npy", x)
        process.send_signal(signal.SIGCONT)
        given.write("run\n")
        given.flush()
        seconds = float(json.loads(answer.readline()))
        process.send_signal(signal.SIGSTOP)  # its threads would spin through the others' turns
        return seconds, np.load(folder / "out.npy")

    weakref.finalize(run, _end, process)
    return run


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


PEERS: dict[str, Callable[..., Run]] = {
    "torch": torch_eager, "compile": torch_compile, "onnxruntime": onnxruntime, "openvino": openvino,
    "deepsparse": deepsparse,
}  # fmt: skip
