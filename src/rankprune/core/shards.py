"""Weights that are sharded over ranks (FSDP2): the local part, and how the parts count together."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_PLAIN = (Tensor, nn.Parameter)  # most tensors are of these types, which are never sharded


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor: the tensor itself unless it is a DTensor.

    Args:
        tensor: A tensor or DTensor.
    """
    if type(tensor) in _PLAIN or not is_sharded(tensor):
        return tensor
    return tensor.to_local()  # type: ignore[attr-defined]


def sharded(tensor: Tensor, name: str) -> Shards:
    """How this tensor is shared out over ranks: by rows, or not at all.

    Args:
        tensor: A tensor or DTensor.
        name: Its name, for the message.

    Raises:
        ValueError: It is sharded otherwise than by rows.
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

    def max(self, value: Tensor) -> Tensor:
        """The largest over the ranks that share the tensor.

        Args:
            value: The value on this rank.
        """
        return value

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
    """One tensor split by rows in rank order; histograms and counts travel, the tensor itself only for `gather`."""

    def __init__(self, group: dist.ProcessGroup, tensor: Tensor) -> None:
        self.group = group
        self.shape = tensor.shape
        self.rank = dist.get_rank(group)
        mine = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=local(tensor).device)
        mine[self.rank] = local(tensor).shape[0]
        self.rows: list[int] = self.sum(mine).tolist()

    def __bool__(self) -> bool:
        return True

    def sum(self, counts: Tensor) -> Tensor:
        counts = counts.clone()
        dist.all_reduce(counts, group=self.group)
        return counts

    def max(self, value: Tensor) -> Tensor:
        value = value.clone()
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
        return value

    def before(self, count: int) -> int:
        """How many were counted on the ranks before this one."""
        mine = torch.zeros(len(self.rows), dtype=torch.int64)
        mine[self.rank] = count
        return int(self.sum(mine)[: self.rank].sum())

    def gather(self, part: Tensor) -> Tensor:
        """The whole tensor from its parts."""
        padded = self._padded(part)
        parts = [torch.empty_like(padded) for _ in self.rows]
        dist.all_gather(parts, padded, group=self.group)
        return torch.cat([p[:r] for p, r in zip(parts, self.rows)])

    def gather_on(self, owner: int, part: Tensor) -> Tensor | None:
        """The whole tensor on one rank, None on the others."""
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
        mine = like.new_empty((max(self.rows), *like.shape[1:]))
        dist.scatter(mine, parts, src=dist.get_global_rank(self.group, owner), group=self.group)
        return mine[: like.shape[0]]

    def _padded(self, part: Tensor) -> Tensor:
        """Padded to as many rows as the largest part: collectives need equal sizes."""
        padded = part.new_zeros((max(self.rows), *part.shape[1:]))
        padded[: part.shape[0]] = part
        return padded

    def scatter(self, whole: Tensor) -> Tensor:
        """This rank's part of the whole tensor."""
        return whole.split(self.rows)[self.rank]


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which each rank holds a part.

    Args:
        tensor: Any tensor.
    """
    return hasattr(tensor, "placements") and hasattr(tensor, "to_local")
