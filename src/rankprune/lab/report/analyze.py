"""What is in a trained file: ranks, density, MACs and dead filters of each layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankprune import flops, rank
from rankprune.lab.models.detection import count_macs
from rankprune.lab.runs.open_model import open_model


@dataclass(frozen=True)
class Analysis:
    profile: rank.RankProfile
    macs: flops.FlopReport

    def to_dict(self) -> dict[str, Any]:
        return {
            "delta": self.profile.delta,
            "delta_rank_ratio": self.profile.mean_ratio(),
            "layers": [asdict(row) for row in self.profile.rows],
            "macs_dense": self.macs.dense,
            "macs_sparse": round(self.macs.sparse),
            "dead_filters": sum(row.dead_rows for row in self.profile.rows),
        }

    def __str__(self) -> str:
        rows = self.profile.rows
        kept, of = sum(row.nonzeros for row in rows), sum(row.shape[0] * row.shape[1] for row in rows)
        dead, filters = sum(row.dead_rows for row in rows), sum(row.shape[0] for row in rows)
        end = f"{kept:,} of {of:,} weights are not zero: sparsity {1 - kept / of:.4%}; {dead} of {filters} filters dead"
        return f"{self.profile}\n\n{self.macs}\n\n{end}"


def analyze(path: str | Path, model: str | None = None, delta: float = 0.1, image_size: int | None = None) -> Analysis:
    """Of a run folder, or of a weights file with its model's name."""
    opened, example, _ = open_model(Path(path), model, image_size)
    return Analysis(rank.profile(opened, delta), count_macs(opened, example.shape[1], example.shape[-1]))
