"""The processes of one run, as torchrun starts them, or one alone; and the few words they exchange."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .errors import Elsewhere, RunError

TIMEOUT = "RANKPRUNE_TIMEOUT"  # seconds a process waits for the others before it takes them for lost
_LOST = ("closed by peer", "reset by peer", "timed out", "timeout", "connection refused", "broken pipe", "gloo", "nccl")


@dataclass(frozen=True)
class World:
    """This process among those of its run. Alone, every exchange is with itself and costs nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    control: Any = None  # a gloo group beside the one of the gradients: words never wait for a device

    @property
    def main(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def highest(self, *values: int) -> list[int]:
        """The greatest of each value over all processes."""
        return list(values) if self.size == 1 else self._reduced(values, torch.int64, dist.ReduceOp.MAX)

    def total(self, *values: float) -> list[float]:
        """The sum of each value over all processes."""
        return list(values) if self.size == 1 else self._reduced(values, torch.float64, dist.ReduceOp.SUM)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes, on the value's device and without waiting for it."""
        if self.size == 1:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value / self.size

    def each(self, number: int) -> list[int]:
        """The number of every process, by rank."""
        if self.size == 1:
            return [number]
        found = torch.zeros(self.size, dtype=torch.int64)
        found[self.rank] = number
        dist.all_reduce(found, group=self.control)
        return found.tolist()

    def send(self, content: bytes) -> bytes:
        """What the main process holds, on all."""
        if self.size == 1:
            return content
        length = torch.tensor([len(content)])
        dist.broadcast(length, 0, group=self.control)
        buffer = torch.empty(int(length), dtype=torch.uint8)
        if self.main:
            buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if len(buffer):
            dist.broadcast(buffer, 0, group=self.control)
        return content if self.main else buffer.numpy().tobytes()

    def gather(self, content: bytes) -> list[bytes]:
        """What each process holds, by rank, on all."""
        if self.size == 1:
            return [content]
        found = []
        for rank, length in enumerate(self.each(len(content))):
            held = content if rank == self.rank else bytes(length)
            buffer = torch.tensor(bytearray(held), dtype=torch.uint8)
            if length:
                dist.broadcast(buffer, rank, group=self.control)
            found.append(buffer.numpy().tobytes())
        return found

    def on_main(self, work: Callable[[], Any]) -> Any:
        """Do something on the main process alone; its outcome (plain values), or its failure, on all."""
        if self.size == 1:
            return work()
        if not self.main:
            said = json.loads(self.send(b""))
            if "error" in said:
                raise Elsewhere(said["error"], said["exit_code"], said=True)
            return said["value"]
        try:
            value = work()
        except Exception as error:
            code = getattr(error, "exit_code", 2 if isinstance(error, (ValueError, OSError)) else 1)
            self.send(json.dumps({"error": str(error), "exit_code": code}).encode())
            raise
        self.send(json.dumps({"value": value}).encode())
        return value

    @contextlib.contextmanager
    def first_on_each_machine(self) -> Iterator[None]:
        """One process of each machine goes through the block before the others, so that it alone downloads."""
        if self.size > 1 and self.local_rank:
            dist.barrier(group=self.control)
        yield
        if self.size > 1 and not self.local_rank:
            dist.barrier(group=self.control)

    def settle(self) -> None:
        """Until all that was exchanged has arrived: a process that ends while gloo still holds tensors is aborted."""
        if self.size > 1:
            dist.barrier(group=self.control)

    def share_buffers(self, model: nn.Module) -> None:
        """The main process's running statistics to all: in training each keeps its own."""
        for buffer in model.buffers() if self.size > 1 else ():
            dist.broadcast(buffer, 0)

    def _reduced(self, values: Any, dtype: torch.dtype, how: Any) -> list[Any]:
        tensor = torch.tensor(values, dtype=dtype)
        dist.all_reduce(tensor, op=how, group=self.control)
        return tensor.tolist()


def announced() -> World:
    """Who this process will be, before it has met the others."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    if "RANK" not in os.environ:
        return World()
    return World(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))


def join(device: str = "auto") -> World:
    """Meet the other processes, where torchrun (or the caller, by `init_process_group`) has named any."""
    if not dist.is_available():
        return World()
    if not dist.is_initialized():
        if announced().size == 1:
            return World()
        cuda = torch.cuda.is_available() and (device == "auto" or device.startswith("cuda"))
        if cuda:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_timeout())
        atexit.register(leave)
    if dist.get_world_size() == 1:
        return World()
    control = dist.new_group(backend="gloo", timeout=_timeout())
    return World(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", dist.get_rank())), control)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def lost(error: BaseException) -> bool:
    """Whether an exception says that another process does not answer."""
    if isinstance(error, getattr(dist, "DistError", ())):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _LOST)


def _timeout() -> timedelta:
    text = os.environ.get(TIMEOUT, "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise RunError(f"{TIMEOUT}={text!r} is not a number of seconds: give one such as 600.")
    return timedelta(seconds=seconds)
