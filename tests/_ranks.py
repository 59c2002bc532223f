"""Several processes of torch.distributed, and what they found beside what one process finds."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

Work = Callable[[int, int], dict[str, Any]]  # of rank and number of ranks; at the top of its module


def on_ranks(count: int, work: Work, folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp"])  # slow to import: once, not by each
    mp.start_processes(_worker, args=(count, port, folder, work), nprocs=count, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _worker(rank: int, world: int, port: int, folder: Path, work: Work) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.save(work(rank, world), folder / f"{rank}.pt")
    dist.barrier()  # a process that ends while gloo still holds tensors of an exchange is aborted
    dist.destroy_process_group()


def assert_same(found: Mapping[str, Tensor], alone: Mapping[str, Tensor]) -> None:
    """Masks to the bit; what begins with w: to rounding."""
    for key, value in found.items():
        if key.startswith("w:"):
            assert torch.allclose(value, alone[key], atol=1e-9), key
        else:
            assert torch.equal(value, alone[key]), key
