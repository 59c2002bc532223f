"""The note on timm's script, with timm's own CheckpointSaver, resume and optimizer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import batch, cnn

timm = pytest.importorskip("timm")
pytest.importorskip("timm.optim")
EPOCHS, UPDATES = 4, 3


def run(folder: Path, resume: Path | None = None, stop_after: int = EPOCHS) -> tuple[nn.Module, rp.Sparsifier]:
    from timm.models import resume_checkpoint
    from timm.utils import CheckpointSaver

    folder.mkdir(exist_ok=True)
    args = argparse.Namespace(model="cnn", resume=str(resume or ""))
    model = cnn()
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-2, weight_decay=0.01)
    first = 0
    if args.resume:
        first = resume_checkpoint(model, args.resume, optimizer=optimizer, log_info=False)
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.9, total_steps=EPOCHS * UPDATES, every=2)
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "rankprune": sp.state_dict()})
    if args.resume:
        with torch.serialization.safe_globals([argparse.Namespace]):
            saved: dict[str, Any] = torch.load(args.resume, map_location="cpu", weights_only=True)
        sp.load_state_dict(saved["optimizer"]["rankprune"])
    saver = CheckpointSaver(model, optimizer, args=args, checkpoint_dir=str(folder), recovery_dir=str(folder))
    for epoch in range(first, stop_after):
        for update in range(UPDATES):
            x, y = batch(10 * epoch + update)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        saver.save_checkpoint(epoch, metric=float(epoch))
    return model, sp


def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    whole, first = run(tmp_path / "whole")
    run(tmp_path / "cut", stop_after=2)
    again, second = run(tmp_path / "rest", resume=tmp_path / "cut" / "last.pth.tar")
    assert first.step == second.step == EPOCHS * UPDATES
    report = second.finalize()
    assert report.kept == round(0.1 * report.total)
    first.finalize()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_the_note_says_what_is_tested() -> None:
    note = (Path(__file__).resolve().parents[2] / "docs" / "integrations.md").read_text()
    hook = 'optimizer.register_state_dict_post_hook(lambda _, state: {**state, "rankprune": sp.state_dict()})'
    assert hook in note
    assert hook in Path(__file__).read_text()
