"""Real fits by Lightning: what a callback attaches, saves, restores, finalizes and logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rankprune as rp
from _nets import batch, cnn

pl = pytest.importorskip("lightning.pytorch")
from rankprune.integrations.lightning import SparsityCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
BATCHES, EPOCHS = 5, 4


class Module(pl.LightningModule):
    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.net, self.stop_after = cnn(), stop_after

    def training_step(self, data: tuple[Tensor, Tensor], index: int) -> Tensor:
        if self.global_step == self.stop_after:
            raise KeyError("pulled the plug")
        x, y = data
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def loader() -> DataLoader:
    parts = [batch(i) for i in range(BATCHES)]
    return DataLoader(TensorDataset(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])), batch_size=8)


def trainer(folder: Path, callback: Any, **options: Any) -> Any:
    keep = pl.callbacks.ModelCheckpoint(dirpath=folder, save_top_k=-1, filename="{epoch}")
    return pl.Trainer(
        max_epochs=EPOCHS, callbacks=[callback, keep], logger=False, accelerator="cpu", devices=1,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip


def callback(method: str = "rpg", **options: Any) -> SparsityCallback:
    return SparsityCallback(method, sparsity=0.9, every=2, seed=1, **options) if method == "rpg" else SparsityCallback(method, sparsity=0.9, **options)


@pytest.mark.parametrize("method", ["rpg", "topkast"])
def test_a_fit_ends_at_the_target_and_a_resumed_one_is_the_same(method: str, tmp_path: Path) -> None:
    whole, first = Module(), callback(method)
    run = trainer(tmp_path / "whole", first)
    run.fit(whole, loader())
    report = first.sparsifier.finalize()
    assert report.kept == round(0.1 * report.total) == sum(int(p.count_nonzero()) for n, p in whole.named_parameters() if n in first.sparsifier.masks)
    assert first.sparsifier.step == BATCHES * EPOCHS
    assert run.callback_metrics["sparsity"] == pytest.approx(report.sparsity)
    assert run.callback_metrics["target_sparsity"] == pytest.approx(first.sparsifier.target)

    with pytest.raises(KeyError, match="plug"):
        trainer(tmp_path / "cut", callback(method)).fit(Module(stop_after=2 * BATCHES + 2), loader())
    (checkpoint,) = (tmp_path / "cut").glob("epoch=1*.ckpt")
    again, second = Module(), callback(method)
    trainer(tmp_path / "rest", second).fit(again, loader(), ckpt_path=str(checkpoint))
    assert second.sparsifier.step == BATCHES * EPOCHS
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_the_checkpoint_holds_masks_at_their_own_step(tmp_path: Path) -> None:
    trainer(tmp_path, callback()).fit(Module(), loader())
    (path,) = tmp_path.glob("epoch=1*.ckpt")
    saved = torch.load(path, weights_only=True)["callbacks"]["SparsityCallback"]
    assert saved["step"] == 2 * BATCHES
    assert saved["groups"][0]["method"] == "rpg"


def test_accumulation_counts_optimizer_steps(tmp_path: Path) -> None:
    used = callback()
    trainer(tmp_path, used, accumulate_grad_batches=5).fit(Module(), loader())
    assert used.sparsifier.step == EPOCHS
    assert used.sparsifier.groups[0].total_steps == EPOCHS


def test_a_fit_that_stops_early_says_so(tmp_path: Path) -> None:
    stopped = callback(total_steps=1000)
    with pytest.raises(rp.NotAtTarget, match=re.escape("at step 20")):
        trainer(tmp_path, stopped).fit(Module(), loader())


def test_a_module_can_be_fitted_again_after_a_failure(tmp_path: Path) -> None:
    module, used = Module(stop_after=3), callback()
    with pytest.raises(KeyError):
        trainer(tmp_path / "a", used).fit(module, loader())
    module.stop_after = None
    trainer(tmp_path / "b", used).fit(module, loader())
    assert used.sparsifier.finalize().kept == round(0.1 * used.sparsifier.finalize().total)


def test_one_callback_resumes_what_it_began(tmp_path: Path) -> None:
    module, used = Module(stop_after=2 * BATCHES + 2), callback()
    with pytest.raises(KeyError):
        trainer(tmp_path / "a", used).fit(module, loader())
    (checkpoint,) = (tmp_path / "a").glob("epoch=1*.ckpt")
    module.stop_after = None
    trainer(tmp_path / "b", used).fit(module, loader(), ckpt_path=str(checkpoint))
    assert used.sparsifier.step == BATCHES * EPOCHS


def test_an_endless_fit_needs_total_steps(tmp_path: Path) -> None:
    endless = pl.Trainer(max_epochs=-1, callbacks=[callback()], logger=False, accelerator="cpu", enable_checkpointing=False, enable_progress_bar=False)
    with pytest.raises(ValueError, match="total_steps"):
        endless.fit(Module(), loader())
