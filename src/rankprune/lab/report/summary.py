"""One sentence about a sparse network against the dense one: accuracy, size and latency."""

from __future__ import annotations

from rankprune.lab.bench.latency import ENGINES

from .compare import FinishedRun, short


def summary(dense: FinishedRun, sparse: FinishedRun) -> str:
    """Sum up what pruning kept and gained.

    Args:
        dense: The dense run.
        sparse: A pruned run of the same task.

    Returns:
        One sentence. Latencies are medians of one image: the sparse network on the sparse engine against the dense
        one in torch and ONNX Runtime. The gain is that over the faster of these two. They are left out if either
        network was not measured.
    """
    before, after = dense.result, sparse.result
    name = after.method.partition("+")[0]
    size = before.bytes_dense / after.bytes_sparse
    accuracy = f"{100 * after.accuracy_last:.1f} % accuracy instead of {100 * before.accuracy_last:.1f} %"
    file = f"a file of {short(after.bytes_sparse)}B instead of {short(before.bytes_dense)}B ({size:.0f} x smaller)"
    parts = [accuracy, file]
    if dense.latency is not None and sparse.latency is not None:
        ours, best = sparse.latency.times["rankprune"].median, dense.latency.best_peer().median
        peers = {ENGINES[key]: time.median for key, time in dense.latency.times.items() if key != "rankprune"}
        gain = f"{best / ours:.1f} x faster" if best / ours > 1.02 else "not faster"
        theirs = [f"{_ms(peers[key])} in {key}" for key in sorted(peers, key=peers.__getitem__)]
        theirs[0] += f" ({gain})"  # the fastest of them
        parts.append(f"{_ms(ours)} per image on the sparse engine instead of {' and '.join(theirs)}")
    return f"With {100 * after.sparsity:.1f} % of its weights pruned by {name}, the network has {', '.join(parts)}."


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
