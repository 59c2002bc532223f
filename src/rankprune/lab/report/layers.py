"""Statistics of each layer of a run: density, ranks, spectrum and mask."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankprune import flops
from rankprune.lab.data.sampling import seed_of
from rankprune.lab.recipes.yaml_file import read
from rankprune.lab.runs.open_model import open_model
from rankprune.lab.runs.run_folder import MODEL, RECIPE
from rankprune.lab.training.checkpoint import LAST
from rankprune.rank.spectrum import delta_rank_of, effective_rank_of, rank_of, rounding, svdvals
from rankprune.rank.table import prunable_weights
from rankprune.rank.workers import run_in_parallel

from .picture import picture
from .runs import finite, stamp_of

_POINTS = 128  # maximum number of points of a curve


def layers_of(model: nn.Module, example: Tensor | None, delta: float, side: int) -> list[dict[str, Any]]:
    """Describe each convolution, linear and attention weight of a model.

    Args:
        model: The model.
        example: An example input to count MACs with; None leaves them out.
        delta: The δ of the δ-rank.
        side: Maximum side of a mask's picture, in pixels.

    Returns:
        Plain values of each layer.
    """
    weights = dict(prunable_weights(model))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    macs = {} if example is None else {row.name: row for row in flops.count(model, example).rows}
    described: dict[str, dict[str, Any]] = {}

    def work(name: str) -> None:
        kernel = int(np.prod(shapes[name][2:])) if name in shapes else 1
        described[name] = _layer(name, weights[name].float().cpu(), kernel, delta, side)
        if name in macs:
            described[name] |= {"macs_dense": macs[name].dense, "macs_sparse": round(macs[name].sparse)}

    run_in_parallel(work, weights, cost=lambda name: weights[name].numel() * min(weights[name].shape))
    return [described[name] for name in weights]


def _layer(name: str, M: Tensor, kernel: int, delta: float, side: int) -> dict[str, Any]:
    nonzeros = (M != 0).sum(1)  # (out,), of M (out, in*kh*kw)
    s = svdvals(M) if bool(torch.isfinite(M).all()) else M.new_zeros(0, dtype=torch.float64)
    spectrum = (s / s.norm() if s.numel() and s[0] > 0 else s).numpy()
    at = _spread(len(spectrum))
    by_size = nonzeros.sort(descending=True).values.numpy()
    filters = _spread(len(by_size))
    return {
        "name": name.removesuffix(".weight"),
        "shape": list(M.shape),
        "kernel": kernel,
        "kept": int(nonzeros.sum()),
        "density": float(nonzeros.sum()) / M.numel(),
        "full": min(M.shape),
        "exact": rank_of(s, rounding(M.shape, torch.float64)),
        "delta_rank": delta_rank_of(s, delta),
        "effective": round(effective_rank_of(s), 1),
        "dead": int((nonzeros == 0).sum()),
        "spectrum": {"at": (at + 1).tolist(), "value": [float(f"{v:.4g}") for v in spectrum[at]]},
        "filters": {"at": (filters + 1).tolist(), "kept": by_size[filters].tolist()},
        "picture": asdict(picture(M.numpy(), kernel, side)),
    }


def _spread(length: int) -> np.ndarray:
    """At most `_POINTS` evenly spaced indices, including the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, _POINTS)).round().astype(int)) if length else np.arange(0)


class Layers:
    """The layers of run folders, recomputed only when the weights change.

    Args:
        side: Maximum side of a mask's picture, in pixels.
        patience: After each computation, wait this many times its duration, to leave the CPU to the run.
    """

    def __init__(self, side: int, patience: float = 0.0) -> None:
        self.side, self.patience = side, patience
        self._known: dict[Path, tuple[Any, list[dict[str, Any]]]] = {}
        self._not_before = 0.0

    def weights(self, folder: Path) -> Path | None:
        """Return the file of a run's weights.

        Args:
            folder: The run's folder.

        Returns:
            The finished model, or the newest checkpoint; None if there is neither.
        """
        return next((folder / name for name in (MODEL, LAST) if (folder / name).is_file()), None)

    def due(self, folder: Path) -> bool:
        """Whether a run's weights have changed and may be read now.

        Args:
            folder: The run's folder.

        Returns:
            True if `of` would read them.
        """
        file = self.weights(folder)
        fresh = file is not None and self._known.get(folder, (None,))[0] != (file, stamp_of(file))
        return fresh and time.monotonic() >= self._not_before

    def of(self, folder: Path, delta: float) -> list[dict[str, Any]] | None:
        """Return the layers of a run, recomputed if they are due.

        Args:
            folder: The run's folder.
            delta: The δ of the δ-rank.

        Returns:
            Plain values of each layer; None if there are no weights yet.
        """
        file = self.weights(folder)
        if file is not None and self.due(folder):
            stamp, began = (file, stamp_of(file)), time.monotonic()
            model, example, _ = open_model(file)
            self._known[folder] = stamp, layers_of(model, example, delta, self.side)
            self._not_before = time.monotonic() + self.patience * (time.monotonic() - began)
        return self._known.get(folder, (None, None))[1]


def untrained(folder: Path, delta: float, side: int) -> list[dict[str, Any]] | None:
    """Describe the layers of a run's network at its initialization, as a dense reference.

    Args:
        folder: The run's folder.
        delta: The δ of the δ-rank.
        side: Maximum side of a mask's picture, in pixels.

    Returns:
        Plain values of each layer; None if there are no weights that tell the shapes.
    """
    file = Layers(side).weights(folder)
    if file is None:
        return None
    seed = finite(read(folder / RECIPE).get("seed"))
    about = open_model(file).about
    with torch.random.fork_rng():
        torch.manual_seed(seed_of(abs(int(seed or 0))))
        fresh = about.build()
    return layers_of(fresh, None, delta, side)
