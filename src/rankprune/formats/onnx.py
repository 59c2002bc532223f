"""ONNX export: torch's exporter writes the model, ONNX Runtime checks it, and zeros may be left out."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rankprune._util import need, one_line, write_atomic

OPSET = 18  # the exporter's own; for an older one it runs a version converter, which often fails
MAX_BYTES = 2**31 - 1  # of one protobuf message
TOLERANCE = 1e-4  # largest difference from torch, relative to the largest absolute output


class Disagreement(RuntimeError):
    """ONNX Runtime does not compute what torch computes."""

    exit_code = 1


def save_onnx(model: nn.Module, example: Tensor, path: str | Path, *, sparse_initializer: bool = False) -> float:
    """Write a model for any batch size, atomically, after comparing ONNX Runtime's outputs with torch's.

    Args:
        model: The model, in evaluation mode.
        example: An input.
        path: The file to write.
        sparse_initializer: Store weights with less than a third of nonzeros as (value, index) pairs.

    Returns:
        The largest difference of ONNX Runtime's outputs from torch's, relative to the largest absolute output.

    Raises:
        Disagreement: The difference is too large; nothing is written.
        ValueError: The model is in training mode, cannot be exported, or is larger than the format allows.
    """
    need("onnxruntime", "onnx", "Checking an ONNX file")
    if model.training:
        raise ValueError("save_onnx needs the model in evaluation mode: call model.eval() first")
    proto = to_onnx(model, example, free_batch=True)
    if sparse_initializer:
        sparsify(proto)
    if proto.ByteSize() > MAX_BYTES:
        raise ValueError(
            f"{path} would have {proto.ByteSize():,} bytes, and an ONNX file is limited to 2 GiB: "
            "leave out the zeros with sparse_initializer=True, or use another format"
        )
    data: bytes = proto.SerializeToString()
    error = difference(model, example, data)
    if not error <= TOLERANCE:  # also if it is NaN
        raise Disagreement(
            f"{path} is not written, because ONNX Runtime differs from torch by {error:.1e} of the largest output: "
            "remove what is random or depends on the input's values from the model's forward"
        )
    write_atomic(path, data)
    return error


def to_onnx(model: nn.Module, example: Tensor, *, free_batch: bool) -> Any:
    """Convert a model to an onnx.ModelProto.

    Args:
        model: The model.
        example: An input.
        free_batch: Allow any batch size; otherwise only the example's.

    Returns:
        The onnx.ModelProto.

    Raises:
        ValueError: torch's exporter does not support the model.
    """
    need("onnx", "onnx", "An ONNX file")
    need("onnxscript", "onnx", "An ONNX file")
    if free_batch:  # torch.export specializes on a batch size of 1
        example = torch.cat([example[:1], example[:1]])
    shapes = ({0: torch.export.Dim("batch")},) if free_batch else None
    try:
        with _quiet():
            program = torch.onnx.export(
                model, (example,), dynamo=True, opset_version=OPSET, input_names=["input"], dynamic_shapes=shapes,
                verbose=False,
            )  # fmt: skip
            assert program is not None
            proto = program.model_proto
    except Exception as error:
        reason = one_line(error.__cause__ or error)
        raise ValueError(
            f"torch cannot export {type(model).__name__} to ONNX ({reason}): see torch.onnx.export for what it supports"
        ) from error
    # The exporter stores the Python stack of each operator: paths of this machine, and more bytes than a small network.
    for item in (proto, proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        del item.metadata_props[:]
    return proto


def sparsify(proto: Any) -> None:
    """Move initializers that are smaller as (value, index) pairs to the graph's sparse_initializer, in place.

    Args:
        proto: An onnx.ModelProto.
    """
    onnx = need("onnx", "onnx", "An ONNX file")
    dense = []
    for tensor in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        flat = array.reshape(-1)
        if flat.dtype.kind != "f":
            dense.append(tensor)
            continue
        # By their bits, because -0.0 equals zero but must come back as -0.0.
        (index,) = flat.view(f"u{flat.itemsize}").nonzero()
        pair_bytes = flat.itemsize + 8  # the format prescribes 64-bit indices
        if index.size == 0 or index.size * pair_bytes >= flat.nbytes:
            dense.append(tensor)
            continue
        values = onnx.numpy_helper.from_array(flat[index], tensor.name)
        indices = onnx.numpy_helper.from_array(index.astype(np.int64), f"{tensor.name}.indices")
        proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, list(array.shape)))
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(dense)
    # The exporter declared the type of a dense tensor for them, which no longer holds.
    moved = {sparse.values.name for sparse in proto.graph.sparse_initializer}
    declared = [info for info in proto.graph.value_info if info.name not in moved]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(declared)


def difference(model: nn.Module, example: Tensor, data: bytes) -> float:
    """Compare ONNX Runtime's outputs with torch's on random batches of 1 and 3.

    Args:
        model: The model, in evaluation mode.
        example: An input, for its shape, type and device.
        data: The ONNX file.

    Returns:
        The largest difference, relative to the largest absolute value of the same output.

    Raises:
        Disagreement: ONNX Runtime cannot run the file.
    """
    ort = need("onnxruntime", "onnx", "Checking an ONNX file")
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = ort.InferenceSession(data, options, ["CPUExecutionProvider"])
    except Exception as error:
        raise Disagreement(
            f"ONNX Runtime cannot run the network that torch exported ({one_line(error)}): try a newer onnxruntime"
        ) from None
    worst = 0.0
    for batch in (1, 3):
        x = torch.randn(batch, *example.shape[1:], generator=torch.Generator().manual_seed(batch)).to(example)
        with torch.inference_mode():
            expected = [t.cpu() for t in pytree.tree_leaves(model(x)) if isinstance(t, Tensor)]
        outputs = session.run(None, {session.get_inputs()[0].name: x.cpu().numpy()})
        for ours, theirs in zip(expected, outputs, strict=True):
            scale = max(float(ours.abs().max()), 1e-30) if ours.numel() else 1.0
            worst = float(np.maximum(worst, np.abs(ours.numpy() - theirs).max(initial=0.0) / scale))  # keeps NaN
    return worst


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what the exporter prints: progress, warnings and, if it fails, the whole graph."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    discarded = io.StringIO()
    try:
        with contextlib.redirect_stdout(discarded), contextlib.redirect_stderr(discarded), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
