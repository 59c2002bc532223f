"""Real trainings by Hugging Face's Trainer on a tiny BERT."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import rankprune as rp

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from rankprune.integrations.transformers import SparsityCallback  # noqa: E402

STEPS = 12


class Sentences(Dataset):
    """Whether token 7 is there."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> dict[str, Any]:
        ids = torch.randint(8, 30, (6,), generator=torch.Generator().manual_seed(i))
        if i % 2:
            ids[i % 6] = 7
        return {"input_ids": ids, "labels": i % 2}


def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)  # its dropout is 0.1: the order of random numbers matters


def trainer(folder: Path, callbacks: list[Any], **options: Any) -> Any:
    settings = {
        "max_steps": STEPS, "save_steps": 5, "logging_steps": 4, "save_strategy": "steps",
        "per_device_train_batch_size": 4, "learning_rate": 1e-2, "report_to": "none", "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    args = transformers.TrainingArguments(output_dir=str(folder), **{**settings, **options})
    return transformers.Trainer(model=bert(), args=args, train_dataset=Sentences(), eval_dataset=Sentences(), callbacks=callbacks)


def callback(method: str = "rpg") -> SparsityCallback:
    options = {"every": 2, "rank_layers": "all"} if method == "rpg" else {}
    return SparsityCallback(method, sparsity=0.8, dense=["classifier"], **options)


class Stop(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 8:
            raise KeyError("pulled the plug")


@pytest.mark.parametrize("method", ["rpg", "topkast"])
def test_training_ends_at_the_target_and_a_resumed_one_is_the_same(method: str, tmp_path: Path) -> None:
    first = callback(method)
    whole = trainer(tmp_path / "whole", [first])
    whole.train()
    report = first.sparsifier.finalize()
    assert report.kept == round(0.2 * report.total)
    assert not any(layer.name.startswith("classifier") for layer in report.layers)
    for layer in first.sparsifier.layers:
        assert not layer.weight[~layer.mask].any()

    with pytest.raises(KeyError, match="plug"):
        trainer(tmp_path / "cut", [callback(method), Stop()]).train()
    second = callback(method)
    again = trainer(tmp_path / "cut", [second])
    again.train(resume_from_checkpoint=True)
    assert second.sparsifier.step == STEPS
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_sparsity_is_logged_and_reaches_reporters(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    used = callback()
    run = trainer(tmp_path, [Reporter()])
    used.add_to(run)
    run.train()
    history = [line for line in run.state.log_history if "loss" in line]
    assert [line["step"] for line in history] == [4, 8, 12]
    assert history[0]["sparsity"] < history[-1]["sparsity"] == pytest.approx(used.sparsifier.finalize().sparsity)
    assert {line["target_sparsity"] for line in history} == {used.sparsifier.target}
    assert [line["sparsity"] for line in seen if "loss" in line] == [line["sparsity"] for line in history]


def test_the_best_model_is_checked_with_its_own_masks(tmp_path: Path) -> None:
    """The best of all checkpoints may be one from before the target was reached: then there is no result."""
    used = callback()
    run = trainer(
        tmp_path, [used], load_best_model_at_end=True, eval_strategy="steps", eval_steps=5, metric_for_best_model="step_of_eval",
        greater_is_better=False,
    )  # fmt: skip
    evaluate = run.evaluate

    def earliest(*args: Any, **kwargs: Any) -> dict[str, float]:
        return {**evaluate(*args, **kwargs), "eval_step_of_eval": float(run.state.global_step)}

    run.evaluate = earliest
    with pytest.raises(rp.NotAtTarget):
        run.train()
    assert run.state.best_model_checkpoint.endswith("checkpoint-5")
    assert used.sparsifier.step == 5
    for layer in used.sparsifier.layers:
        assert torch.equal(layer.weight != 0, layer.mask), layer.name


def test_a_checkpoint_without_masks_or_with_anothers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        trainer(tmp_path / "a", [callback(), Stop()]).train()
    (tmp_path / "a" / "checkpoint-5" / "rankprune.pt").unlink()
    with pytest.raises(ValueError, match=r"rankprune\.pt is missing"):
        trainer(tmp_path / "a", [callback()]).train(resume_from_checkpoint=True)
    other = SparsityCallback("rpg", sparsity=0.8, dense=["classifier"], every=2, rank_layers="all", grow=0.0)
    with pytest.raises(KeyError):
        trainer(tmp_path / "b", [other, Stop()], learning_rate=5e-2).train()
    shutil.copy(tmp_path / "b" / "checkpoint-5" / "rankprune.pt", tmp_path / "a" / "checkpoint-5")
    with pytest.raises(ValueError, match="not those of the weights"):
        trainer(tmp_path / "a", [callback()]).train(resume_from_checkpoint=True)
