"""Weights that are sharded over ranks (FSDP2): the local part, and sums, counts and gathers over all parts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)  # never sharded, and checked first since most tensors are of these types


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor: the tensor itself unless it is a DTensor.

    Args:
        tensor: A tensor or DTensor.
    """
    if type(tensor) in _PLAIN or not is_sharded(tensor):
        return tensor
    return tensor.to_local()  # type: ignore[attr-defined]


def sharded(tensor: Tensor, name: str) -> Shards:
    """How a tensor is sharded over ranks: by rows, or not at all.

    Args:
        tensor: A tensor or DTensor.
        name: Its name, for the message.

    Raises:
        ValueError: It is sharded in another way.
    """
    if not is_sharded(tensor):
        return Shards()
    placements: tuple[Any, ...] = tensor.placements  # type: ignore[attr-defined]
    dims = [i for i, placement in enumerate(placements) if not placement.is_replicate()]
    if not dims:
        return Shards()
    if len(dims) > 1 or not placements[dims[0]].is_shard(0):
        raise ValueError(f"{name} is sharded as {placements}: only rows (Shard(0), as fully_shard does) are supported")
    return RowShards(tensor.device_mesh.get_group(dims[0]), tensor)  # type: ignore[attr-defined]


class Shards:
    """A null object for a tensor that every rank holds whole: each operation is the identity. False as a condition."""

    group: Any = None

    def __bool__(self) -> bool:
        return False

    def sum(self, counts: Tensor) -> Tensor:
        """The sum over the ranks that share the tensor.

        Args:
            counts: What was counted on this rank.
        """
        return counts

    def max(self, values: Tensor) -> Tensor:
        """The largest value over the ranks that share the tensor; -inf where there is none.

        Args:
            values: The values on this rank, which may hold no row.
        """
        return values.max() if values.numel() else values.new_tensor(-torch.inf)

    def before(self, count: int) -> int:
        """How many were counted on the ranks before this one.

        Args:
            count: What was counted on this rank.
        """
        return 0

    def gather(self, part: Tensor) -> Tensor:
        """The whole tensor from its parts.

        Args:
            part: This rank's part.
        """
        return part

    def gather_on(self, owner: int, part: Tensor) -> Tensor | None:
        """The whole tensor on one rank, None on the others that share it.

        Args:
            owner: The rank, in the group, that gets it.
            part: This rank's part.
        """
        return part

    def scatter(self, whole: Tensor) -> Tensor:
        """This rank's part of the whole tensor.

        Args:
            whole: The whole tensor.
        """
        return whole


class RowShards(Shards):
    """A tensor split by rows in rank order. Only sums and counts are communicated, except by gather and scatter."""

    def __init__(self, group: dist.ProcessGroup, tensor: Tensor) -> None:
        self.group = group
        self.shape = tensor.shape
        self.rank = dist.get_rank(group)
        self.device = local(tensor).device  # collectives of NCCL need it
        self.rows: list[int] = self._from_each_rank(local(tensor).shape[0])

    def __bool__(self) -> bool:
        return True

    def sum(self, counts: Tensor) -> Tensor:
        counts = counts.clone()
        dist.all_reduce(counts, group=self.group)
        return counts

    def max(self, values: Tensor) -> Tensor:
        largest = super().max(values)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        return largest

    def before(self, count: int) -> int:
        return sum(self._from_each_rank(count)[: self.rank])

    def _from_each_rank(self, count: int) -> list[int]:
        counts = torch.zeros(dist.get_world_size(self.group), dtype=torch.int64, device=self.device)
        counts[self.rank] = count
        return self.sum(counts).tolist()

    def gather(self, part: Tensor) -> Tensor:
        padded = self._padded(part)
        parts = [torch.empty_like(padded) for _ in self.rows]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([p[:r] for p, r in zip(parts, self.rows)])

    def gather_on(self, owner: int, part: Tensor) -> Tensor | None:
        padded = self._padded(part)
        parts = [torch.empty_like(padded) for _ in self.rows] if self.rank == owner else None
        dist.gather(padded, parts, dst=dist.get_global_rank(self.group, owner), group=self.group)
        return None if parts is None else torch.cat([p[:r] for p, r in zip(parts, self.rows)])

    def scatter_from(self, owner: int, whole: Tensor | None, like: Tensor) -> Tensor:
        """This rank's part, as large as `like`, of a tensor that one rank holds whole.

        Args:
            owner: The rank, in the group, that holds it.
            whole: The tensor on that rank, None on the others.
            like: A tensor of the shape of this rank's part.
        """
        parts = None if whole is None else [self._padded(p) for p in whole.contiguous().split(self.rows)]
        padded = like.new_empty((max(self.rows), *like.shape[1:]))
        dist.scatter(padded, parts, src=dist.get_global_rank(self.group, owner), group=self.group)
        return padded[: like.shape[0]]

    def _padded(self, part: Tensor) -> Tensor:
        """The part with as many rows as the largest one has: collectives need equal sizes."""
        padded = part.new_zeros((max(self.rows), *part.shape[1:]))
        padded[: part.shape[0]] = part
        return padded

    def scatter(self, whole: Tensor) -> Tensor:
        return whole.split(self.rows)[self.rank]


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which each rank holds a part.

    Args:
        tensor: Any tensor.
    """
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")
