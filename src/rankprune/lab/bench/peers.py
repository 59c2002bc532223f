"""Other engines in one interface, for comparison: functions from a NumPy batch to seconds and outputs."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rankprune.formats.onnx import to_onnx

Run = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Absent(RuntimeError):
    """An engine that is not available. The message says how to install it."""


def timed(call: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """Time a call.

    Args:
        call: The function.

    Returns:
        (seconds, its result).
    """
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def joined(outputs: Any) -> np.ndarray:
    """Flatten a network's outputs to one array.

    Args:
        outputs: One array or tensor, or any structure of them.

    Returns:
        The array itself, or all of them flattened and concatenated.
    """
    arrays = [np.asarray(leaf) for leaf in pytree.tree_leaves(outputs)]
    return arrays[0] if len(arrays) == 1 else np.concatenate([array.reshape(-1) for array in arrays])


def torch_eager(model: Callable[..., Any], example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    """Prepare torch in eager mode.

    Args:
        model: The model.
        example: An example input.
        threads: Number of threads.
        folder: Not used.
        environment: Not used.

    Returns:
        A function from a NumPy batch to seconds and outputs.
    """

    def run(x: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.inference_mode():
            return timed(lambda: joined(model(torch.from_numpy(x))))

    return run


def torch_compile(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    """Prepare `torch.compile`.

    Args:
        model: The model.
        example: An example input.
        threads: Number of threads.
        folder: Not used.
        environment: Not used.

    Returns:
        A function from a NumPy batch to seconds and outputs.
    """
    return torch_eager(torch.compile(model), example, threads, folder, environment)


def export(model: nn.Module, example: Tensor, folder: Path) -> Path:
    """Export the model to ONNX at the example's batch size, once for all engines.

    Args:
        model: The model.
        example: An example input.
        folder: Folder to write into.

    Returns:
        The file.

    Raises:
        Absent: The model cannot be exported.
    """
    path = folder / "model.onnx"
    if not path.exists():
        try:
            path.write_bytes(to_onnx(model, example, free_batch=False).SerializeToString())
        except (ImportError, ValueError) as error:
            raise Absent(str(error)) from None
    return path


def export_for_deepsparse(model: nn.Module, example: Tensor, folder: Path) -> Path:
    """Export the model to ONNX with torch's old exporter.

    The new exporter writes opset 18 or later. DeepSparse 1.8.0 refuses such a file because of its IR version, and with
    a
    lowered version it runs none of the operators itself (its fraction_of_supported_ops is 0 for ResNet-50) but leaves
    all
    of them, dense, to its own ONNX Runtime. It runs all operators of opset 14, the oldest one with attention.

    Args:
        model: The model.
        example: An example input.
        folder: Folder to write into.

    Returns:
        The file.

    Raises:
        Absent: The model cannot be exported.
    """
    if importlib.util.find_spec("onnx") is None:
        raise Absent("ONNX files need onnx: pip install 'rankprune[onnx]'")
    path = folder / "deepsparse.onnx"
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():  # a failure prints the whole graph
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (example,), str(path), opset_version=14, dynamo=False)
    except Exception as error:
        raise Absent(f"torch cannot write this model as ONNX ({' '.join(str(error).split())[:120]})") from None
    return path


def onnxruntime(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    """Prepare ONNX Runtime.

    Args:
        model: The model.
        example: An example input.
        threads: Number of threads.
        folder: Folder for the ONNX file.
        environment: Not used.

    Returns:
        A function from a NumPy batch to seconds and outputs.

    Raises:
        Absent: It is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise Absent("onnxruntime is not installed: pip install 'rankprune[onnx]'")
    return onnx_file(export(model, example, folder), threads)


def onnx_file(path: Path, threads: int) -> Run:
    """Prepare ONNX Runtime for an existing file.

    Args:
        path: The ONNX file.
        threads: Number of threads.

    Returns:
        A function from a NumPy batch to seconds and outputs.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # Its threads must not spin between its turns, where they would take CPU time from the other engines.
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: timed(lambda: joined(session.run(None, {name: x})))


def onnxruntime_int8(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    """Prepare ONNX Runtime with static int8 quantization, calibrated on random inputs: for latency, not accuracy.

    Args:
        model: The model.
        example: An example input.
        threads: Number of threads.
        folder: Folder for the ONNX files.
        environment: Not used.

    Returns:
        A function from a NumPy batch to seconds and outputs.

    Raises:
        Absent: It is not installed.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise Absent("onnxruntime is not installed: pip install 'rankprune[onnx]'")
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, quantized = folder / "plain.onnx", folder / "int8.onnx"
    quant_pre_process(str(export(model, example, folder)), str(plain), skip_symbolic_shape=True)
    generator = torch.Generator().manual_seed(0)
    batches = iter([{"input": torch.randn(example.shape, generator=generator).numpy()} for _ in range(2)])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            found = next(batches, None)
            return None if found is None else dict(zip(names, found.values()))

    names = _inputs(plain)
    kind = quantization.QuantType  # VNNI multiplies unsigned activations by signed weights
    types = {"activation_type": kind.QUInt8, "weight_type": kind.QInt8}
    quantization.quantize_static(str(plain), str(quantized), Reader(), per_channel=True, **types)
    return onnx_file(quantized, threads)


def _inputs(path: Path) -> list[str]:
    import onnx

    return [value.name for value in onnx.load(str(path), load_external_data=False).graph.input]


def openvino(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    """Prepare OpenVINO.

    Args:
        model: The model.
        example: An example input.
        threads: Number of threads.
        folder: Folder for the ONNX file.
        environment: Not used.

    Returns:
        A function from a NumPy batch to seconds and outputs.

    Raises:
        Absent: It is not installed.
    """
    if importlib.util.find_spec("openvino") is None:
        raise Absent("openvino is not installed: pip install openvino")
    import openvino as ov

    # By default it computes in bfloat16 where the CPU has it, which is another precision than ours.
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = ov.compile_model(str(export(model, example, folder)), "CPU", settings)
    return lambda x: timed(lambda: joined(list(compiled(x).values())))


def openvino_int8(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    """Prepare OpenVINO with int8 quantization by NNCF, calibrated on random inputs: for latency, not accuracy.

    Args:
        model: The model.
        example: An example input.
        threads: Number of threads.
        folder: Folder for the ONNX file.
        environment: Not used.

    Returns:
        A function from a NumPy batch to seconds and outputs.

    Raises:
        Absent: OpenVINO or NNCF is not installed.
    """
    if importlib.util.find_spec("openvino") is None or importlib.util.find_spec("nncf") is None:
        raise Absent("openvino and nncf are not both installed: pip install openvino nncf")
    import nncf
    import openvino as ov

    generator = torch.Generator().manual_seed(0)
    given = nncf.Dataset([torch.randn(example.shape, generator=generator).numpy() for _ in range(2)])
    with contextlib.redirect_stdout(io.StringIO()):
        quantized = nncf.quantize(ov.Core().read_model(str(export(model, example, folder))), given, subset_size=2)
    compiled = ov.compile_model(quantized, "CPU", {"INFERENCE_NUM_THREADS": threads})
    return lambda x: timed(lambda: joined(list(compiled(x).values())))


def deepsparse(model: nn.Module, example: Tensor, threads: int, folder: Path, environment: str | None) -> Run:
    """Prepare DeepSparse in a process of its own environment, which is stopped between its turns.

    Args:
        model: The model.
        example: An example input.
        threads: Number of threads.
        folder: Folder to exchange files with the process.
        environment: A virtual environment that has deepsparse.

    Returns:
        A function from a NumPy batch to seconds and outputs.

    Raises:
        Absent: The environment is missing or DeepSparse does not start.
    """
    if environment is None:
        raise Absent("DeepSparse needs its own environment: give the path of one that has deepsparse==1.8.0")
    python = Path(environment) / "bin" / "python"
    if not python.exists():
        raise Absent(f"there is no {python}: create it with python3 -m venv and pip install deepsparse==1.8.0")
    path = export_for_deepsparse(model, example, folder)
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
        raise Absent(f"DeepSparse in {environment} does not start ({line.strip() or 'it exited'}): run it by itself")
    given, answer = process.stdin, process.stdout

    def run(x: np.ndarray) -> tuple[float, np.ndarray]:
        np.save(folder / "in.npy", x)
        process.send_signal(signal.SIGCONT)
        given.write("run\n")
        given.flush()
        seconds = float(json.loads(answer.readline()))
        process.send_signal(signal.SIGSTOP)  # its threads would spin while other engines are timed
        return seconds, np.load(folder / "out.npy")

    weakref.finalize(run, _end, process)
    return run


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


PEERS: dict[str, Callable[..., Run]] = {
    "torch": torch_eager, "compile": torch_compile, "onnxruntime": onnxruntime, "openvino": openvino,
    "onnxruntime-int8": onnxruntime_int8, "openvino-int8": openvino_int8,
    "deepsparse": deepsparse,
}  # fmt: skip
