"""One sentence about a sparse network against the dense one: accuracy, size and latency."""

from __future__ import annotations

from .compare import FinishedRun


def summary(dense: FinishedRun, sparse: FinishedRun) -> str:
    """Sum up what pruning kept and gained.

    Args:
        dense: The dense run.
        sparse: A pruned run of the same task.

    Returns:
        One sentence. Latencies are medians of one image: the sparse network on the sparse engine against the dense
        one on the faster of torch and ONNX Runtime. They are left out if either was not measured.
    """
    before, after = dense.result, sparse.result
    name = after.method.partition("+")[0]
    size = before.bytes_dense / after.bytes_sparse
    parts = [
        f"keeps {100 * after.accuracy_last:.1f} % accuracy of the dense {100 * before.accuracy_last:.1f} %",
        f"in a file of {_bytes(after.bytes_sparse)} instead of {_bytes(before.bytes_dense)} ({size:.0f} x smaller)",
    ]
    if dense.latency is not None and sparse.latency is not None:
        ours, theirs = sparse.latency.times["rankprune"].median, dense.latency.best_peer().median
        ratio = theirs / ours
        gain = f"{ratio:.1f} x faster" if ratio > 1.02 else "not faster"
        parts.append(f"and takes {1e3 * ours:.3g} ms per image instead of {1e3 * theirs:.3g} ms ({gain})")
    return f"With {after.sparsity:.1%} of its weights cut by {name}, the network {', '.join(parts)}."


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
