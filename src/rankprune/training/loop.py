"""The loop. Whatever is random in it is seeded by (seed, epoch, batch), so it can be entered between any two steps."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rankprune.data.sampling import seed_of

from . import checkpoint
from .errors import Interrupted, NanLoss
from .evaluate import evaluate
from .flops_meter import FlopsMeter
from .folder import BEST, RunFolder
from .interrupt import Interrupt
from .optim import learning_rate, set_learning_rate
from .task import Task
from .watch import Watcher


@dataclass
class Progress:
    """Where a run stands, and what it has found so far. Changes only between two optimizer steps."""

    epoch: int = 0  # epochs completed
    batch: int = 0  # batches of the current one
    step: int = 0  # optimizer steps
    loss: float = 0.0  # sum over the batches of the current epoch
    seconds: float = 0.0
    flops: float = 0.0
    last: dict[str, Any] | None = None  # the newest epoch's line
    best: dict[str, Any] | None = None  # the line of the best epoch at the final sparsity


class Loop:
    def __init__(self, task: Task, folder: RunFolder, watcher: Watcher, progress: Progress) -> None:
        self.task, self.folder, self.watcher, self.progress = task, folder, watcher, progress
        self.meter = FlopsMeter(task)
        self._clock = self._saved = time.monotonic()
        self._saved_step = progress.step
        self._sum = torch.tensor(progress.loss, dtype=torch.float64, device=task.device)

    def run(self, interrupt: Interrupt) -> None:
        """To the end of the last epoch, or until a signal."""
        while self.progress.epoch < self.task.recipe.epochs:
            self._epoch(interrupt)

    def _epoch(self, interrupt: Interrupt) -> None:
        task, p = self.task, self.progress
        batches, accumulate = task.data.batches_per_epoch, task.recipe.accumulate
        task.model.train()
        group = self._sum.new_zeros(())  # loss of the batches of the step under way
        for batch, (images, labels) in enumerate(task.data.train(p.epoch, p.batch), p.batch):
            torch.manual_seed(seed_of(task.recipe.seed, p.epoch, batch, 1))  # dropout and the like
            loss = task.loss(images, labels)
            group = group + loss.detach()
            self._check(loss)
            size = min(accumulate, batches - batch // accumulate * accumulate)
            task.scaler.scale(loss / size).backward()
            if (batch + 1) % accumulate and batch + 1 < batches:
                continue
            self._step()
            self._sum, group = self._sum + group, torch.zeros_like(group)
            p.batch, p.step = batch + 1, p.step + 1
            self.watcher.step(p.step)
            if interrupt.signum is not None:
                self._stop(interrupt.signum)
            elif p.batch < batches and self._save_due():
                self.save()
        self._end_of_epoch()
        if interrupt.signum is not None and p.epoch < task.recipe.epochs:
            self._stop(interrupt.signum)

    def _step(self) -> None:
        task, recipe = self.task, self.task.recipe
        set_learning_rate(task.optimizer, learning_rate(recipe, self.progress.step, task.steps_per_epoch))
        if recipe.clip_norm is not None:
            task.scaler.unscale_(task.optimizer)
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), recipe.clip_norm)
        task.scaler.step(task.optimizer)
        task.scaler.update()
        task.optimizer.zero_grad()
        if task.ema is not None:
            task.ema.update(task.model, step=self.progress.step + 1)
        self.progress.flops += self.meter.step()

    def _check(self, loss: Tensor) -> None:
        """Stop at a loss that is not finite: on a CPU before it spoils the weights, elsewhere before the next save."""
        if self.task.device.type == "cpu" and not bool(torch.isfinite(loss)):
            self._fail(loss.item(), f"step {self.progress.step + 1}")

    def _fail(self, loss: float, where: str) -> None:
        # Not saved now: the forward pass has already put this batch into BatchNorm's running statistics.
        saved = f"saved at step {self._saved_step}" if self._saved_step else "not saved yet"
        raise NanLoss(
            f"The loss is {loss:g} at {where} (epoch {self.progress.epoch + 1}) of {self.folder.path}, {saved}: "
            f"lower optimizer.lr={self.task.recipe.optimizer.lr:g} or set clip_norm."
        )

    def _end_of_epoch(self) -> None:
        task, p = self.task, self.progress
        model = task.evaluated()
        found = evaluate(model, task.data)
        sparsifier = task.sparsifier
        self._tick()
        p.epoch += 1
        p.last = {
            "epoch": p.epoch,
            "step": p.step,
            "train_loss": float(self._sum) / max(p.batch, 1),
            **{f"test_{key}": value for key, value in found.items()},
            "lr": task.optimizer.param_groups[0]["lr"],
            "target_sparsity": 0.0 if sparsifier is None else sparsifier.target,
            "sparsity": 0.0 if sparsifier is None else sparsifier.sparsity,
            "at_target": task.at_target(),
            "seconds": round(p.seconds, 3),
        }
        p.batch, self._sum = 0, torch.zeros_like(self._sum)
        if p.last["at_target"] and (p.best is None or p.last["test_top1"] > p.best["test_top1"]):
            p.best = p.last
            checkpoint.write(self.folder.path / BEST, {"model": model.state_dict(), "metrics": p.best})
        self.folder.append_metrics(p.last)
        self.save()
        self.watcher.epoch(p.last)

    def save(self) -> None:
        self._tick()
        self.progress.loss = float(self._sum)
        if not math.isfinite(self.progress.loss):  # a device that is not waited for at every step
            self._fail(self.progress.loss, f"a step after {self._saved_step}")
        checkpoint.save(self.folder.path, {"progress": asdict(self.progress), **self.task.state_dict()})
        self._saved, self._saved_step = time.monotonic(), self.progress.step

    def _save_due(self) -> bool:
        save, p = self.task.recipe.save, self.progress
        by_steps = save.every_steps is not None and p.step % save.every_steps == 0
        return by_steps or (save.every_seconds is not None and time.monotonic() - self._saved >= save.every_seconds)

    def _stop(self, signum: int) -> None:
        self.save()
        p = self.progress
        raise Interrupted(
            f"Stopped at step {p.step} of {self.task.total_steps} and saved in {self.folder.path}: "
            "the same command goes on from there (train with --resume).",
            signum,
        )

    def _tick(self) -> None:
        now = time.monotonic()
        self.progress.seconds += now - self._clock
        self._clock = now


