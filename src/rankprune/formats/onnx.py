"""A model as an ONNX file: written by torch's exporter, checked in ONNX Runtime, its zeros left out if wanted."""

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

from rankprune._util import need, write_atomic

OPSET = 18  # the oldest that the exporter writes by itself; anything older is a conversion that often fails
LARGEST = 2**31 - 1  # bytes of one protobuf message
TOLERANCE = 1e-4  # of the output's scale


class Disagreement(RuntimeError):
    """ONNX Runtime computes something else than torch."""

    exit_code = 1


def save_onnx(model: nn.Module, example: Tensor, path: str | Path, *, sparse_initializer: bool = False) -> float:
    """Write a model in evaluation mode for any batch size; the old file stays until the new one is checked.

    Args:
        model: The network.
        example: An input.
        path: The file to write.
        sparse_initializer: Whether weights below a third of density are stored as their non-zeros.

    Returns:
        The largest difference of ONNX Runtime's outputs from torch's, as a share of the outputs' scale.

    Raises:
        Disagreement: The difference is too large; nothing is written.
        ValueError: The file would be larger than the format allows.
    """
    need("onnxruntime", "onnx", "Checking an ONNX file")
    proto = to_onnx(model, example, free_batch=True)
    if sparse_initializer:
        sparsify(proto)
    if proto.ByteSize() > LARGEST:
        raise ValueError(f"{path} would have {proto.ByteSize():,} bytes, and an ONNX file ends at 2 GiB")
    data: bytes = proto.SerializeToString()
    error = difference(model, example, data)
    if not error <= TOLERANCE:  # also where it is NaN
        raise Disagreement(f"{path} is not written: ONNX Runtime is off torch by {error:.1e} of the outputs' scale")
    write_atomic(path, data)
    return error


def to_onnx(model: nn.Module, example: Tensor, *, free_batch: bool) -> Any:
    """The model as an onnx.ModelProto, for inputs of the example's shape, or of any batch size.

    Args:
        model: The network.
        example: An input.
        free_batch: Whether the batch size is left open.
    """
    need("onnx", "onnx", "An ONNX file")
    need("onnxscript", "onnx", "An ONNX file")
    if free_batch:  # a batch of one would be taken for a constant
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
        reason = " ".join(str(error.__cause__ or error).split())[:160]
        raise ValueError(f"torch cannot write {type(model).__name__} as ONNX ({reason})") from error
    # The exporter notes the stack of each operator: folders of this machine, and more bytes than a small network.
    for noted in (proto, proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        del noted.metadata_props[:]
    return proto


def sparsify(proto: Any) -> None:
    """Move initializers that are smaller as (value, index) pairs to the graph's sparse_initializer, in place.

    Args:
        proto: An onnx.ModelProto.
    """
    onnx = need("onnx", "onnx", "An ONNX file")
    kept = []
    for tensor in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        flat = array.reshape(-1)
        # The bits: minus zero is no zero. The format asks for 64-bit indices, whatever the size.
        (index,) = flat.view(f"u{flat.itemsize}").nonzero() if flat.dtype.kind == "f" else (np.arange(flat.size),)
        if index.size == 0 or index.size * (flat.itemsize + 8) >= flat.nbytes:
            kept.append(tensor)
            continue
        values = onnx.numpy_helper.from_array(flat[index], tensor.name)
        indices = onnx.numpy_helper.from_array(index.astype(np.int64), f"{tensor.name}.indices")
        proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, list(array.shape)))
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    # What the exporter noted of them, an ordinary tensor's type, no longer holds.
    moved = {sparse.values.name for sparse in proto.graph.sparse_initializer}
    noted = [info for info in proto.graph.value_info if info.name not in moved]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(noted)


def difference(model: nn.Module, example: Tensor, data: bytes) -> float:
    """The largest difference of ONNX Runtime's outputs from torch's, for 1 and 3 images, as a share of their scale.

    Args:
        model: The network.
        example: An input.
        data: The ONNX file.
    """
    ort = need("onnxruntime", "onnx", "Checking an ONNX file")
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = ort.InferenceSession(data, options, ["CPUExecutionProvider"])
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise Disagreement(f"ONNX Runtime does not take the network that torch wrote ({reason})") from None
    worst = 0.0
    for batch in (1, 3):
        x = torch.randn(batch, *example.shape[1:], generator=torch.Generator().manual_seed(batch))
        with torch.inference_mode():
            want = [t for t in pytree.tree_leaves(model(x)) if isinstance(t, Tensor)]
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        for ours, theirs in zip(want, got, strict=True):
            scale = max(float(ours.abs().max()), 1e-30) if ours.numel() else 1.0
            worst = float(np.maximum(worst, np.abs(ours.numpy() - theirs).max(initial=0.0) / scale))  # NaN stays
    return worst


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's progress, warnings and, where it fails, the whole network."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
