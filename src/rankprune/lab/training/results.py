"""Builds the result of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from rankprune import flops, rank
from rankprune.core.summary import Report
from rankprune.lab.models.detection import count_macs
from rankprune.lab.recipes.load import fingerprint
from rankprune.lab.runs.result import RunResult

from .loop import Progress
from .task import Task


def describe_run(
    task: Task, model: nn.Module, report: Report | None, progress: Progress, file: Path, updates: dict[str, Any]
) -> RunResult:
    """Build the result of a finished run.

    Args:
        task: The objects of the run.
        model: The trained model, whole and in evaluation mode.
        report: What `Sparsifier.finalize` returned; None for a dense run.
        progress: The counters of the loop.
        file: The saved sparse file.
        updates: What `describe_updates` returned.

    Returns:
        The result.
    """
    recipe, last, best = task.recipe, progress.last, progress.best
    assert last is not None
    assert best is not None
    profile = rank.profile(model, recipe.delta)
    frozen = {name for name, p in task.model.named_parameters() if not p.requires_grad}
    trained = [row for row in profile.rows if row.name not in frozen]
    exact = [row.exact_rank / row.full_rank for row in profile.rows]
    macs = count_macs(model, task.data.in_channels, task.data.image_size)
    metric = f"test_{task.data.metric}"
    others = [key.removeprefix("test_") for key in last if key.startswith("test_") and key not in (metric, "test_loss")]
    dense_flops = flops.dense_training_flops(macs.dense, progress.step * task.samples_per_step)
    return RunResult(
        recipe=recipe.name,
        fingerprint=fingerprint(recipe),
        setting=fingerprint(recipe.model_copy(update={"seed": 0})),
        task=f"{recipe.model.name} on {recipe.data.name}",
        method="dense" if recipe.method is None else recipe.method.name,
        seed=recipe.seed,
        epochs=recipe.epochs,
        steps=progress.step,
        target_sparsity=0.0 if recipe.method is None else recipe.method.sparsity,
        sparsity=0.0 if report is None else report.sparsity,
        kept=sum(row.nonzeros for row in trained) if report is None else report.kept,
        prunable=sum(row.shape[0] * row.shape[1] for row in trained) if report is None else report.total,
        metric=task.data.metric,
        accuracy_last=last[metric],
        accuracy_best=best[metric],
        best_epoch=best["epoch"],
        delta=recipe.delta,
        delta_rank_ratio=profile.mean_ratio(),
        exact_rank_ratio=sum(exact) / max(len(exact), 1),
        dead_filters=sum(row.dead_rows for row in profile.rows),
        filters=sum(row.shape[0] for row in profile.rows),
        macs_dense=macs.dense,
        macs_sparse=round(macs.sparse),
        # Copies, because a plain file stores tied weights under both names.
        bytes_dense=len(safetensors.torch.save({k: v.contiguous().clone() for k, v in model.state_dict().items()})),
        bytes_sparse=file.stat().st_size,
        training_flops=progress.flops,
        training_share=progress.flops / dense_flops,
        seconds=round(progress.seconds, 1),
        precision=str(task.precision or torch.float32).removeprefix("torch."),
        scores={
            f"{key}_{when}": line[f"test_{key}"] for key in others for when, line in (("last", last), ("best", best))
        },
        note=recipe.note or None,
        **updates,
    )


def describe_updates(task: Task) -> dict[str, Any]:
    """Count the mask updates and, for methods that grow weights, the fraction of grown weights that survived.

    Every process must call it, because counting sharded masks is collective.

    Args:
        task: The objects of the run.

    Returns:
        Fields of `RunResult`.
    """
    if task.sparsifier is None:
        return {}
    (group,) = task.sparsifier.groups
    statistics: dict[str, Any] = {"updates": len(group.plan.steps)}
    if task.survival is not None:
        task.survival.look(group)
        statistics["survival"] = task.survival.shares(group)
        statistics["survival_late"] = task.survival.shares(group, since=0.5)
    return statistics
