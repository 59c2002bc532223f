"""Hugging Face: `Trainer(..., callbacks=[SparsityCallback("rpg", sparsity=0.9, rank_layers="all")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankprune._util import need
from rankprune.core.sparsifier import Sparsifier, attach

from .state import metrics, restore, save

need("transformers", "transformers", "The callback for Hugging Face's Trainer")

from transformers import TrainerCallback  # noqa: E402


class SparsityCallback(TrainerCallback):
    """Attaches when training begins and finalizes when it ends; its state is `rankprune.pt` in each checkpoint.

    Target and actual sparsity are added to each log.

    Args:
        method: As for `rankprune.attach`.
        **options: Other arguments of `rankprune.attach`, except `total_steps`, which the trainer knows.
    """

    def __init__(self, method: Any, **options: Any) -> None:
        self.method, self.options = method, options
        self.sparsifier: Sparsifier | None = None

    def add_to(self, trainer: Any) -> None:
        """Add the callback before the trainer's reporters, so that they log the sparsity too.

        Use it instead of `callbacks=[...]`.

        Args:
            trainer: The trainer.
        """
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.sparsifier is not None:
            self.sparsifier.detach()  # an earlier training was interrupted
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self.sparsifier = attach(model, optimizer, self.method, total_steps=state.max_steps, **self.options)
        if state.global_step:
            # The trainer does not tell its callbacks which checkpoint it resumes from.
            chosen = args.resume_from_checkpoint
            folder = Path(chosen) if isinstance(chosen, str) and chosen != "True" else _folder(args, state)
            restore(self.sparsifier, folder)
            for layer in self.sparsifier.layers:
                if layer.weight.masked_fill(layer.mask, 0).count_nonzero():
                    raise ValueError(
                        f"the masks in {folder} are not those of the weights that were loaded: "
                        "set args.resume_from_checkpoint to the folder of both"
                    )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.sparsifier is not None:
            sparsity = metrics(self.sparsifier)
            logs.update(sparsity)
            state.log_history[-1].update(sparsity)  # the trainer copied `logs` into it before calling the callbacks

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.sparsifier is not None
        save(self.sparsifier, _folder(args, state), state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.sparsifier is not None
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            restore(self.sparsifier, state.best_model_checkpoint)  # the weights are those of that checkpoint
        self.sparsifier.finalize()


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
