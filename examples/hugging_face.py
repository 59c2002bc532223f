"""Hugging Face's Trainer: a vision transformer is pruned to 80 %; its masks are saved in the Trainer's checkpoints.

Needs `pip install 'rankprune[transformers]'`. Run it:

    python examples/hugging_face.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import rankprune as rp
from rankprune.integrations.transformers import SparsityCallback

STEPS = 400


class Clothes(Dataset):
    def __init__(self, batches: Any) -> None:
        images, labels = zip(*batches)
        self.images, self.labels = torch.cat(images), torch.cat(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"pixel_values": self.images[i], "labels": self.labels[i]}


def main() -> None:
    torch.manual_seed(0)
    data = rp.data.load_data("fashion", image_size=14, batch_size=100, limit_train=4000, limit_test=1000, augment=False)
    config = ViTConfig(
        image_size=14, patch_size=2, num_channels=1, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, num_labels=10,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    # No convolution is worth its rank here: steer the linear layers as well, and leave the head dense.
    pruning = SparsityCallback("rpg", sparsity=0.8, every=10, rank_layers="all", dense=["classifier"])
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, max_steps=STEPS, save_steps=STEPS // 2, logging_steps=STEPS // 4, learning_rate=2e-3,
            per_device_train_batch_size=32, report_to="none", use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            model=model, args=args, train_dataset=Clothes(data.train(0)), eval_dataset=Clothes(data.test()),
            compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
            callbacks=[pruning],
        )  # fmt: skip
        trainer.train()  # after a crash: trainer.train(resume_from_checkpoint=True)
        print(f"accuracy {trainer.evaluate()['eval_accuracy']:.1%}")
    assert pruning.sparsifier is not None
    print(pruning.sparsifier.finalize())  # checked by the callback already; here for the table


if __name__ == "__main__":
    main()
