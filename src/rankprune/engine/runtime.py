"""Runs a saved network with NumPy and the kernels; torch is not imported and need not be installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankprune.engine.backend.cores import default_threads
from rankprune.engine.backend.engine import Engine
from rankprune.engine.graph.graph import Unsupported
from rankprune.engine.graph.limits import Limits, TooLarge

from .planfile import DamagedPlan, read

__all__ = ["DamagedPlan", "Network", "default_threads", "load"]


class Network:
    """A loaded plan. Call it with one float32 array (batch, ...) per input of the network.

    Args:
        engine: The engine that runs it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def input_shapes(self) -> list[tuple[int, ...]]:
        """Shape of each input, without the batch dimension."""
        return [self.engine.graph.shapes[v] for v in self.engine.graph.inputs]

    def __call__(self, *inputs: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
        outputs = self.engine([np.asarray(x) for x in inputs])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def load(
    path: str | Path, threads: int | None = None, max_memory: float | None = None, max_work: float | None = None
) -> Network:
    """Load a plan that `compile(...).save(path)` wrote.

    Args:
        path: The file.
        threads: Number of threads; by default the cores that this process may use.
        max_memory: Bytes of tables and activations that the network may use on one thread. By default 1 GiB or 64 times
            the size of the file, whichever is larger; `math.inf` for no limit.
        max_work: Multiply-adds per image. By default 2e10, or 1e5 for each byte of the file if that is larger.

    Returns:
        The network.

    Raises:
        DamagedPlan: The file is not a valid plan, or exceeds the limits.
        FileNotFoundError: There is no such file.

    Example:
        >>> network = rankprune.engine.runtime.load("net.plan")
        >>> logits = network(images)  # float32, (batch, 3, 224, 224)
    """
    plan = read(path)
    limits = Limits.of_file(Path(path).stat().st_size, max_memory, max_work)
    try:
        return Network(Engine(plan.graph, threads, plan.kernels, eight=plan.eight, limits=limits))
    except TooLarge as error:
        raise DamagedPlan(f"{path} {error}") from None
    except Unsupported as error:
        raise DamagedPlan(f"{path} holds a network the kernels cannot run ({error}): save it again") from None
