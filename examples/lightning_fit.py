"""Lightning: one callback prunes, saves its state in Lightning's checkpoints and logs the sparsity.

Trains two epochs, stops, and resumes from the checkpoint. Needs `pip install 'rankprune[lightning]'`. Run it:

    python examples/lightning_fit.py
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rankprune as rp
from rankprune.integrations.lightning import SparsityCallback

EPOCHS = 4


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = rp.models.create_model("vgg-small", num_classes=10, in_channels=1)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


class StopAfter(pl.Callback):
    """Interrupts training after two epochs."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.current_epoch == 2:
            raise KeyboardInterrupt


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    data = rp.data.load_data("fashion", image_size=14, batch_size=64, limit_train=3000, limit_test=1000, augment=False)
    train, test = (
        DataLoader(TensorDataset(*(torch.cat(part) for part in zip(*batches))), batch_size=64)
        for batches in (data.train(0), data.test())
    )
    with tempfile.TemporaryDirectory() as folder:
        for stop in (True, False):
            pruning = SparsityCallback("feather", sparsity=0.95)
            keep = pl.callbacks.ModelCheckpoint(dirpath=folder, filename="last", enable_version_counter=False)
            trainer = pl.Trainer(
                max_epochs=EPOCHS, callbacks=[pruning, keep, *([StopAfter()] if stop else [])], accelerator="cpu",
                logger=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            model = Classifier()
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                trainer.fit(model, train, test, ckpt_path=None if stop else f"{folder}/last.ckpt")
            assert pruning.sparsifier is not None
            print(f"step {pruning.sparsifier.step}: " + ", ".join(
                f"{name} {value:.2%}" for name, value in trainer.callback_metrics.items()
            ))  # fmt: skip
    print(pruning.sparsifier.finalize())  # checked by the callback already; here for the table


if __name__ == "__main__":
    main()
