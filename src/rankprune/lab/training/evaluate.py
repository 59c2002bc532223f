"""Evaluation on the test set."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from rankprune.lab.data import IGNORE, DataModule
from rankprune.lab.data.coco import CocoData
from rankprune.lab.distributed.world import World

from .detection import evaluate_detection


@torch.no_grad()
def evaluate(model: nn.Module, data: DataModule, world: World = World()) -> dict[str, float]:  # noqa: B008  (frozen)
    """Evaluate a model on the test set in full precision.

    Each process evaluates its share of the test set, with the running statistics of the main process.

    Args:
        model: The model.
        data: The data set.
        world: The processes of the run.

    Returns:
        Mean loss, top-1 and (with ten classes or more) top-5 accuracy as fractions; for detection, AP.
    """
    if isinstance(data, CocoData):
        return evaluate_detection(model, data, world)
    world.share_buffers(model)
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    loss = top1 = top5 = count = 0.0
    for images, labels in data.test():
        images, labels = images.to(device), labels.to(device)
        logits = model(images).float()
        loss += F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORE).item()
        best = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        top1, top5 = top1 + int(best[:, 0].sum()), top5 + int(best.any(1).sum())
        count += int((labels != IGNORE).sum())
    model.train(training)
    loss, top1, top5, count = world.sum(loss, top1, top5, count)
    metrics = {"loss": loss / count, "top1": top1 / count}
    return {**metrics, "top5": top5 / count} if data.num_classes >= 10 else metrics
