"""Several processes with DistributedDataParallel: the masks are the same on every rank, without further code.

Each rank takes its share of the batches. At the end the digests of the masks are gathered and compared. Run it:

    torchrun --nproc-per-node 2 examples/torchrun.py
"""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rankprune as rp

EPOCHS = 3


def main() -> None:
    dist.init_process_group("gloo")  # "nccl" with one GPU a process
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = rp.data.load_data(
        "fashion", image_size=14, batch_size=64 // world, limit_train=2000, rank=rank, world_size=world
    )
    model = DistributedDataParallel(rp.models.create_model("vgg-small", num_classes=10, in_channels=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    sp = rp.attach(model, optimizer, "rpg", sparsity=0.95, total_steps=EPOCHS * data.batches_per_epoch, every=10)
    for epoch in range(EPOCHS):
        for x, y in data.train(epoch):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    report = sp.finalize()

    digest = hashlib.sha256(b"".join(mask.numpy().tobytes() for mask in sp.masks.values())).hexdigest()[:16]
    digests: list[str] = [""] * world
    dist.all_gather_object(digests, digest)
    if rank == 0:
        print(report)
        print(f"masks on {world} ranks: {', '.join(digests)}")
        assert len(set(digests)) == 1
    dist.barrier()  # a process that ends while gloo still holds tensors of an exchange is aborted
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
