"""A run that was cut off and resumed gives the bytes of one that was not."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rankprune
from _runs import Plug, data_of, model_bytes, run, small
from rankprune.lab.data import DataError
from rankprune.lab.data.base import Batch
from rankprune.lab.data.memory import MemoryData
from rankprune.lab.models import create_model
from rankprune.lab.recipes import load_recipe
from rankprune.lab.runs.run_folder import RunFolder
from rankprune.lab.training import Interrupted, RunError, checkpoint, train
from rankprune.lab.training.task import build

CASES = {
    "rpg": ("fashion-rpg-90",),
    "gmp": ("fashion-gmp-90",),
    "rigl": ("fashion-rigl-90",),
    "set": ("fashion-set-90",),
    "magnitude": ("fashion-magnitude-90",),
    "dense": ("fashion-dense",),
    "adamw, no decay on norms": ("fashion-rpg-90", "optimizer={name: adamw, lr: 0.01, decay_norm_and_bias: false}"),
    "accumulation, clipping": ("fashion-rpg-90", "accumulate=3", "clip_norm=1"),
    "ema": ("fashion-rpg-90", "ema.decay=0.9"),
    "bf16, channels last": ("fashion-rpg-90", "amp=bf16", "channels_last=true"),
    "fp16": ("fashion-gmp-90", "amp=fp16"),
    "smoothing, warm-up, steps": (
        "fashion-rigl-90", "label_smoothing=0.1", "schedule={name: step, milestones: [0.5], warmup_epochs: 0.5}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_resumed_in_mid_epoch_is_bit_exact(tmp_path: Path, case: str) -> None:
    recipe = small(*CASES[case])
    whole = run(recipe, tmp_path / "whole")
    batches = 4 if recipe.accumulate > 1 else 10
    for at in (batches // 2, batches + 3):  # twice, before and after a first resume
        with pytest.raises(Interrupted, match=r"Stopped at step \d+ of \d+ and saved in"):
            run(recipe, tmp_path / "cut", resume=True, callback=Plug(at))
    resumed = run(recipe, tmp_path / "cut", resume=True)
    assert model_bytes(resumed.folder) == model_bytes(whole.folder)
    timeless = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(run.folder).metrics()]
        for run in (whole, resumed)
    ]
    assert timeless[0] == timeless[1]
    assert replace(resumed.result, seconds=0.0) == replace(whole.result, seconds=0.0)


def test_the_average_is_evaluated_and_saved_with_the_zeros_of_the_masks(tmp_path: Path) -> None:
    folder = run(small("fashion-rpg-90", "ema.decay=0.9"), tmp_path).folder
    plain = run(small("fashion-rpg-90"), tmp_path).folder
    model = create_model("test-tiny", 10, 1)
    rankprune.load(folder / "model.sparse.safetensors", model)
    task = build(small("fashion-rpg-90", "ema.decay=0.9"), data_of(16, 160, 100))
    task.load_state_dict(checkpoint.read(folder / "last.ckpt"))
    assert task.sparsifier is not None
    for name, mask in task.sparsifier.masks.items():
        assert (model.get_parameter(name)[~mask] == 0).all()
        assert (~mask).any()
    assert model_bytes(folder) != model_bytes(plain)


def test_distillation_takes_a_teacher_by_name_and_file(tmp_path: Path) -> None:
    teacher = run(small("fashion-dense"), tmp_path).folder / "model.sparse.safetensors"
    distill = f"distill={{model: test-tiny, weights: {teacher}, alpha: 0.9}}"
    taught = run(small("fashion-gmp-90", distill), tmp_path)
    alone = run(small("fashion-gmp-90"), tmp_path)
    assert model_bytes(taught.folder) != model_bytes(alone.folder)
    with pytest.raises(Interrupted):
        run(small("fashion-gmp-90", distill), tmp_path / "cut", callback=Plug(7))
    resumed = run(small("fashion-gmp-90", distill), tmp_path / "cut", resume=True)
    assert model_bytes(resumed.folder) == model_bytes(taught.folder)


@pytest.mark.parametrize("damage", ["flip", "gone"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    recipe = small("fashion-rpg-90", "save.every_steps=4")
    whole = run(recipe, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(recipe, tmp_path / "cut", callback=Plug(14))
    last = RunFolder.of(recipe, tmp_path / "cut").path / "last.ckpt"
    raw = bytearray(last.read_bytes())
    if damage == "gone":
        last.unlink()
    else:
        raw[len(raw) // 2] ^= 1
        last.write_bytes(raw)
    plug = Plug()
    resumed = run(recipe, tmp_path / "cut", resume=True, callback=plug)
    assert plug.steps[0] == 13  # that of step 12 was the one before
    assert "last.ckpt is" in plug.messages[0]
    assert "previous.ckpt" in plug.messages[0]
    assert model_bytes(resumed.folder) == model_bytes(whole.folder)


def test_another_environment_is_said(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(small(), tmp_path, callback=Plug(4))
    path = RunFolder.of(small(), tmp_path).path / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "threads": 77}))
    plug = Plug()
    run(small(), tmp_path, resume=True, callback=plug)
    assert plug.messages == ["The run was started with threads 77 and continues with 1: the last bits may differ."]


@pytest.mark.long
def test_compiled_runs_resume_exactly_too(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    recipe = small("fashion-rpg-90", "compile=true")
    whole = run(recipe, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(recipe, tmp_path / "cut", callback=Plug(13))
    assert model_bytes(run(recipe, tmp_path / "cut", resume=True).folder) == model_bytes(whole.folder)
    assert whole.result.kept == 138


def test_both_damaged_is_one_sentence(tmp_path: Path) -> None:
    recipe = small()
    with pytest.raises(Interrupted):
        run(recipe, tmp_path, callback=Plug(14))
    for name in ("last.ckpt", "previous.ckpt"):
        (RunFolder.of(recipe, tmp_path).path / name).write_bytes(b"x")
    with pytest.raises(RunError, match="start over"):
        run(recipe, tmp_path, resume=True)


def test_a_signal_that_takes_the_data_workers_along_is_no_failure(tmp_path: Path) -> None:
    """As schedulers send it: to all processes of a run at once."""

    class Ending(MemoryData):
        def train(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
            for number, batch in enumerate(super().train(epoch, start_batch), start_batch):
                if number == 4 and not start_batch:
                    os.kill(os.getpid(), signal.SIGTERM)
                    raise DataError("A data worker died.")
                yield batch

    recipe, data = small(), copy.copy(data_of(16, 160, 100))
    data.__class__ = Ending
    with pytest.raises(Interrupted, match="Stopped at step 4 ") as caught:
        train(recipe, tmp_path / "cut", data=data)
    assert caught.value.exit_code == 128 + signal.SIGTERM
    resumed = run(recipe, tmp_path / "cut", resume=True)
    assert model_bytes(resumed.folder) == model_bytes(run(recipe, tmp_path / "whole").folder)


REAL = [
    "fashion-rpg-95", "epochs=2", "data.limit_train=320", "data.limit_test=50", "data.batch_size=16",
    "method.every=2", "save.every_steps=3",
]  # fmt: skip


def start(out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rankprune", "train", *REAL, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# SIGKILL at random moments: test_kill.py, in the short suite.
@pytest.mark.parametrize("signum", [pytest.param(signal.SIGKILL, marks=pytest.mark.long), signal.SIGTERM])
def test_a_killed_process_loses_nothing(tmp_path: Path, signum: signal.Signals, whole_run: Path) -> None:
    recipe = load_recipe(REAL[0], REAL[1:])
    folder = RunFolder.of(recipe, tmp_path).path
    process = start(tmp_path)
    deadline = time.monotonic() + 120
    while not (folder / "previous.ckpt").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=120)
    assert not (folder / "result.json").exists(), "the run was over before the signal"
    if signum == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + signum
        assert "--resume" in errors
        assert "Traceback" not in errors
    progress = checkpoint.load(folder)[0]["progress"]
    assert 0 < progress["batch"] < 20, "not in mid-epoch"
    resumed = run(recipe, tmp_path, resume=True)
    assert model_bytes(resumed.folder) == model_bytes(whole_run)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(load_recipe(REAL[0], REAL[1:]), tmp_path_factory.mktemp("whole")).folder
