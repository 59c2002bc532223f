"""Analysis of a network's weights: ranks, density, MACs and dead filters of each layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankprune import flops, rank
from rankprune._util import one_line
from rankprune.lab.models.detection import count_macs
from rankprune.lab.runs.open_model import open_model


@dataclass(frozen=True)
class Analysis:
    """Ranks and MACs of a network, layer by layer."""

    profile: rank.RankProfile
    macs: flops.FlopReport | None  # None: the model does not accept one input of the assumed shape
    no_macs: str = ""  # why, as one sentence

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "delta": self.profile.delta,
            "delta_rank_ratio": self.profile.mean_ratio(),
            "layers": [asdict(row) for row in self.profile.rows],
            "macs_dense": None if self.macs is None else self.macs.dense,
            "macs_sparse": None if self.macs is None else round(self.macs.sparse),
            "dead_filters": sum(row.dead_rows for row in self.profile.rows),
        }

    def __str__(self) -> str:
        rows = self.profile.rows
        kept, of = sum(row.nonzeros for row in rows), sum(row.shape[0] * row.shape[1] for row in rows)
        dead, filters = sum(row.dead_rows for row in rows), sum(row.shape[0] for row in rows)
        sparsity = f"sparsity {100 * (1 - kept / of):.4f} %"
        end = f"{kept:,} of {of:,} weights are not zero: {sparsity}; {dead} of {filters} filters dead"
        return f"{self.profile}\n\n{self.macs or self.no_macs}\n\n{end}"


def analyze(path: str | Path, model: str | None = None, delta: float = 0.1, image_size: int | None = None) -> Analysis:
    """Analyze the layers of a run folder, or of a weights file.

    Args:
        path: The run folder or weights file.
        model: Name of the model, if the file does not say.
        delta: The δ of the δ-rank, between 0 and 1.
        image_size: Height and width of the input, if not those that the file says.

    Returns:
        Ranks, density, MACs and dead filters of each layer.

    Raises:
        ValueError: `delta` is not between 0 and 1, or the model cannot be opened.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta:g} is not between 0 and 1 (it is a fraction of the norm): try 0.1.")
    opened, example, about = open_model(Path(path), model, image_size)
    profile = rank.profile(opened, delta)
    try:
        if about.features is not None:
            return Analysis(profile, flops.count(opened, example))
        return Analysis(profile, count_macs(opened, example.shape[1], example.shape[-1]))
    except Exception as error:  # models raise all kinds of errors on an input that they do not accept
        shape = " x ".join(map(str, example.shape))
        why = f"MACs are not counted, because the model does not accept one input of {shape} ({one_line(error, 200)})"
        return Analysis(profile, None, f"{why}: give --image-size, or use rankprune.flops.count in Python.")
