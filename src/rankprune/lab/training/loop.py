"""The training loop. All randomness is seeded by (seed, epoch, batch), so a run can resume between any two steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rankprune.core.shards import local
from rankprune.lab.data.augment import reseed
from rankprune.lab.data.sampling import seed_of
from rankprune.lab.distributed.mask_agreement import check_masks_agree
from rankprune.lab.distributed.parallel import whole
from rankprune.lab.distributed.world import is_lost_peer
from rankprune.lab.errors import Interrupted, LostRank, NanLoss, RunError, StepFailed
from rankprune.lab.runs.run_folder import BEST, RunFolder

from . import checkpoint
from .callbacks import Callback
from .evaluate import evaluate
from .flops_meter import FlopsMeter
from .interrupt import Interrupt
from .optimizer import learning_rate, set_learning_rate
from .task import Task

_FAILURE = 1000  # represents an exception; larger than any signal number


@dataclass
class Progress:
    """How far a run is, and its results so far. Changes only between two optimizer steps."""

    epoch: int = 0  # epochs completed
    batch: int = 0  # batches completed in the current epoch
    step: int = 0  # optimizer steps completed
    loss: float = 0.0  # sum over the batches of the current epoch
    seconds: float = 0.0
    flops: float = 0.0
    last: dict[str, Any] | None = None  # metrics of the last epoch
    best: dict[str, Any] | None = None  # metrics of the best epoch at the final sparsity

    def checked(self) -> Progress:
        """Check values that come from a file.

        Returns:
            Itself.

        Raises:
            ValueError: A value has the wrong type or is negative.
        """
        for key in ("epoch", "batch", "step"):
            if type(getattr(self, key)) is not int or getattr(self, key) < 0:
                raise ValueError(f"{key}={getattr(self, key)!r}")
        for key in ("loss", "seconds", "flops"):
            if type(getattr(self, key)) not in (int, float):
                raise ValueError(f"{key}={getattr(self, key)!r}")
        for key in ("last", "best"):
            if not isinstance(getattr(self, key), (dict, type(None))):
                raise ValueError(f"{key}={getattr(self, key)!r}")
        return self


class Loop:
    """The training loop of one process. Before each batch all processes agree whether to continue, save or stop.

    Args:
        task: The objects of the run.
        folder: The run's folder.
        callback: Receives the progress.
        progress: Where to start.
    """

    def __init__(self, task: Task, folder: RunFolder, callback: Callback, progress: Progress) -> None:
        self.task, self.folder, self.callback, self.progress = task, folder, callback, progress
        self.world = task.world
        self.meter = FlopsMeter(task)
        self._clock = self._saved = time.monotonic()
        self._saved_step = progress.step
        self._sum = torch.tensor(progress.loss, dtype=torch.float64, device=task.device)
        self._buffers = list(task.model.buffers())
        self._kept = [buffer.clone() for buffer in self._buffers]  # their values after the last step
        self._consistent = True  # weights, optimizer, masks and progress belong to the same step
        self._between_steps = True  # and no batch of the next step has been processed

    def run(self, interrupt: Interrupt) -> None:
        """Train to the end of the last epoch, or until a signal or failure; then save, if this process can.

        Args:
            interrupt: Tells whether a signal has arrived.

        Raises:
            Interrupted: A signal asked to stop; the run has been saved.
            RunError: The run failed; the message says what was saved.
        """
        try:
            while self.progress.epoch < self.task.recipe.epochs:
                self._epoch(interrupt)
        except RunError:  # raised on all processes, saved and described already
            raise
        except Exception as error:
            kept = self._emergency_save(together=False)
            if self.world.size > 1 and is_lost_peer(error):
                raise LostRank(
                    f"Another process of {self.folder.path} stopped responding at step {self.progress.step + 1}, "
                    f"{kept}: start them all again with --resume."
                ) from error
            raise self._failed(error, kept) from error

    def _epoch(self, interrupt: Interrupt) -> None:
        task, p = self.task, self.progress
        batches, accumulate = task.data.batches_per_epoch, task.recipe.accumulate
        task.model.train()
        group = self._sum.new_zeros(())  # loss of the current step's batches
        source = task.data.train(p.epoch, p.batch)
        for batch in range(p.batch, batches):
            images, labels = self._next(source, interrupt)
            # Dropout and mixup draw different numbers on each process.
            reseed(seed_of(task.recipe.seed, p.epoch, batch, 1 + self.world.rank), task.device)
            last = not (batch + 1) % accumulate or batch + 1 == batches
            size = min(accumulate, batches - batch // accumulate * accumulate)
            self._between_steps = False
            with task.syncing(last):
                loss = task.loss(images, labels)
                task.scaler.scale(loss / size).backward()
            group = group + loss.detach()
            if not last:
                continue
            group = self.world.mean(group)
            self._check_finite(group)
            self._step()
            self._sum, group = self._sum + group, torch.zeros_like(group)
            p.batch, p.step = batch + 1, p.step + 1
            self._consistent = self._between_steps = True
            self.callback.step(p.step, self._status)
        self._sync_or_stop(interrupt)
        self._end_of_epoch()

    def _status(self) -> dict[str, float]:
        """Values of the current epoch so far, for progress lines."""
        status = {"loss": float(self._sum) / max(self.progress.batch, 1)}
        if self.progress.last is not None:
            status["accuracy"] = self.progress.last[f"test_{self.task.data.metric}"]
        if self.task.sparsifier is not None and not self.task.sharded:  # counting shards takes all processes
            status["sparsity"] = self.task.sparsifier.sparsity
        return status

    def _next(self, source: Iterator[Any], interrupt: Interrupt) -> Any:
        """The next batch, once every process has one."""
        problem, item = None, None
        try:
            item = next(source)
        except Exception as error:  # raised after the other processes have been told
            problem = error
        self._sync_or_stop(interrupt, problem)
        return item

    def _sync_or_stop(self, interrupt: Interrupt, problem: Exception | None = None) -> None:
        """Stop if any process has a signal or a failure, save if it is time; all at the same step."""
        # Signals come first: one sent to the process group also ends the data workers, which looks like a failure.
        signal_or_failure, due = self.world.max(interrupt.signum or (_FAILURE if problem else 0), int(self._save_due()))
        if signal_or_failure == _FAILURE:
            raise self._failed(problem, self._emergency_save(together=True)) from problem
        if signal_or_failure:
            self._restore_buffers()
            self.save()
            raise Interrupted(
                f"Stopped at step {self.progress.step} of {self.task.total_steps} and saved in {self.folder.path}.",
                signal_or_failure,
                already_reported=not self.world.main,
            )
        if due:
            self.save()

    def _step(self) -> None:
        task, recipe = self.task, self.task.recipe
        self._consistent = False
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
        for kept, buffer in zip(self._kept, self._buffers):
            kept.copy_(buffer)

    def _check_finite(self, loss: Tensor) -> None:
        """Stop at a loss that is not finite: on a CPU before the weights are updated, else before the next save."""
        if self.task.device.type == "cpu" and not bool(torch.isfinite(loss)):
            raise self._nan(loss.item(), f"step {self.progress.step + 1}", self._emergency_save(together=True))

    def _nan(self, loss: float, where: str, kept: str) -> NanLoss:
        return NanLoss(
            f"The loss is {loss:g} at {where} (epoch {self.progress.epoch + 1}) of {self.folder.path}, {kept}: "
            f"lower optimizer.lr={self.task.recipe.optimizer.lr:g} or set clip_norm.",
            already_reported=not self.world.main,
        )

    def _failed(self, problem: Exception | None, kept: str) -> StepFailed:
        place = f"at step {self.progress.step + 1} of {self.folder.path}, {kept}"
        if problem is None:
            message = f"Another process failed {place}: see its own message."
            return StepFailed(message, 1, already_reported=True)
        expected = isinstance(problem, (ValueError, OSError, ImportError))
        what = str(problem) if expected else f"{type(problem).__name__}: {problem}"
        what = " ".join(what.split()).rstrip(".")
        return StepFailed(f"{what} ({place}; fix it and add --resume).", 2 if expected else 1)

    def _end_of_epoch(self) -> None:
        task, p = self.task, self.progress
        model = task.evaluated()
        scores = evaluate(model, task.data, self.world)
        sparsifier = task.sparsifier
        self._consistent = False
        self._tick()
        p.epoch += 1
        p.last = {
            "epoch": p.epoch,
            "step": p.step,
            "train_loss": float(self._sum) / max(p.batch, 1),
            **{f"test_{key}": value for key, value in scores.items()},
            "lr": task.optimizer.param_groups[0]["lr"],
            "target_sparsity": 0.0 if sparsifier is None else sparsifier.target,
            "sparsity": 0.0 if sparsifier is None else sparsifier.sparsity,
            "at_target": task.at_target(),
            "seconds": round(p.seconds, 3),
        }
        p.batch, self._sum = 0, torch.zeros_like(self._sum)
        metric = f"test_{task.data.metric}"
        better = p.last["at_target"] and (p.best is None or p.last[metric] > p.best[metric])
        state = None
        if better:
            p.best = p.last
            state = {"model": whole(model.state_dict(), self.world.main), "metrics": p.best}
        self.world.on_main(lambda: self._record(p.last, state))
        self.save()
        self.callback.epoch(p.last)

    def _record(self, line: Any, best: dict[str, Any] | None) -> None:
        if best is not None:
            checkpoint.write(self.folder.path / BEST, best)
        self.folder.append_metrics(line)

    def save(self, together: bool = True) -> None:
        """Save the last completed step on the main process.

        Args:
            together: All processes call this, and compare their masks first.

        Raises:
            NanLoss: The loss is not finite.
            MasksDiffer: The masks of the processes differ.
        """
        self._consistent = False
        self._tick()
        self.progress.loss = float(self._sum)
        if not math.isfinite(self.progress.loss):  # only now checked on a GPU, to avoid synchronizing at every step
            raise self._nan(self.progress.loss, f"a step after {self._saved_step}", self._where_saved())
        if together:
            check_masks_agree(self.task.sparsifier, self.world, f"{self.folder.path}, {self._where_saved()}")
        state = {"progress": asdict(self.progress), **self.task.state_dict()}
        if together:
            self.world.on_main(lambda: checkpoint.save(self.folder.path, state))
        else:
            checkpoint.save(self.folder.path, state)
        self._saved, self._saved_step = time.monotonic(), self.progress.step
        self._consistent = True

    def _emergency_save(self, together: bool) -> str:
        """After a failure, save the last complete step if this process can; returns a phrase that says what is saved.

        A sharded state can be gathered only when all processes take part; weights that are not finite are not saved.
        """
        self._restore_buffers()
        able = self._consistent and (together or (self.world.main and not self.task.sharded))
        values = [*self.task.model.parameters(), *self._buffers]
        bad = not able or not all(bool(torch.isfinite(local(value)).all()) for value in values)
        if together:
            bad = bool(self.world.max(int(bad))[0])
        if not bad and self.progress.step > self._saved_step:
            self.save(together)
        return self._where_saved()

    def _restore_buffers(self) -> None:
        """Restore the running statistics of the last step, which the next forward pass may have updated."""
        for kept, buffer in zip(self._kept, self._buffers):
            buffer.copy_(kept)

    def _where_saved(self) -> str:
        return f"saved at step {self._saved_step}" if self._saved_step else "not saved yet"

    def _save_due(self) -> bool:
        save, p = self.task.recipe.save, self.progress
        at_end = p.batch == self.task.data.batches_per_epoch  # the end of an epoch saves anyway
        if not self._between_steps or p.step == self._saved_step or at_end:
            return False
        by_steps = save.every_steps is not None and p.step % save.every_steps == 0
        return by_steps or (save.every_seconds is not None and time.monotonic() - self._saved >= save.every_seconds)

    def _tick(self) -> None:
        now = time.monotonic()
        self.progress.seconds += now - self._clock
        self._clock = now
