"""Accelerate's own save_state and load_state carry the masks; accumulation and trackers see what they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rankprune as rp
from _nets import batch, cnn, sgd

accelerate = pytest.importorskip("accelerate")
from rankprune.integrations.accelerate import attach, log  # noqa: E402
from rankprune.integrations.state import restore  # noqa: E402

STEPS = 12


@pytest.fixture(autouse=True)
def _fresh_singletons() -> Any:
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def start(method: str, **options: Any) -> tuple[Any, nn.Module, Any, rp.Sparsifier]:
    accelerator = accelerate.Accelerator(cpu=True, **options)
    net = cnn()
    model, optimizer = accelerator.prepare(net, sgd(net))
    hyper = {"every": 2} if method == "rpg" else {}
    return accelerator, model, optimizer, attach(accelerator, model, optimizer, method, sparsity=0.9, total_steps=STEPS, **hyper)


def steps(accelerator: Any, model: nn.Module, optimizer: Any, first: int, last: int, after: Any = None) -> None:
    for step in range(first, last + 1):
        with accelerator.accumulate(model):
            x, y = batch(step)
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
        if after:
            after(step)


@pytest.mark.parametrize("method", ["rpg", "topkast"])
def test_a_resumed_loop_is_the_same(method: str, tmp_path: Path) -> None:
    accelerator, model, optimizer, sp = start(method)
    steps(accelerator, model, optimizer, 1, STEPS, lambda step: accelerator.save_state(tmp_path) if step == 7 else None)
    report = sp.finalize()
    assert report.kept == round(0.1 * report.total)
    assert torch.load(tmp_path / "rankprune.pt", weights_only=True)["step"] == 7
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator, again, optimizer, second = start(method)
    accelerator.load_state(tmp_path)
    assert second.step == 7
    steps(accelerator, again, optimizer, 8, STEPS)
    second.finalize()
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_accumulated_batches_are_one_step() -> None:
    accelerator, model, optimizer, sp = start("rpg", gradient_accumulation_steps=4)
    steps(accelerator, model, optimizer, 1, 4 * STEPS)
    assert sp.step == STEPS
    sp.finalize()


def test_trackers_get_both_sparsities(tmp_path: Path) -> None:
    seen: list[tuple[dict[str, float], int | None]] = []

    class Tracker(accelerate.tracking.GeneralTracker):
        name, requires_logging_directory, main_process_only = "list", False, True
        tracker = None

        def store_init_configuration(self, values: dict) -> None:
            pass

        def log(self, values: dict, step: int | None, **kwargs: Any) -> None:
            seen.append((values, step))

    accelerator, model, optimizer, sp = start("rpg", log_with=Tracker())
    accelerator.init_trackers("test")
    steps(accelerator, model, optimizer, 1, STEPS)
    log(accelerator, sp)
    assert seen == [({"target_sparsity": sp.target, "sparsity": sp.sparsity}, STEPS)]


def test_a_folder_without_masks_is_refused(tmp_path: Path) -> None:
    accelerator, _, _, _ = start("rpg")
    accelerator.save_state(tmp_path)
    (tmp_path / "rankprune.pt").unlink()
    with pytest.raises(ValueError, match=r"rankprune\.pt is missing"):
        accelerator.load_state(tmp_path)


def test_a_damaged_state_is_one_sentence(tmp_path: Path) -> None:
    _, _, _, sp = start("rigl")
    for damaged in (b"", b"nonsense", b"PK\x03\x04"):
        (tmp_path / "rankprune.pt").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"rankprune\.pt is damaged \([^\n]*\): resume from another checkpoint$"):
            restore(sp, tmp_path)
