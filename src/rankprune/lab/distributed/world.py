"""The processes of a run, as started by torchrun (or a single one), and the collectives they need."""

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

from rankprune.lab.errors import MainProcessFailed, RunError

TIMEOUT = "RANKPRUNE_TIMEOUT"  # seconds to wait for the other processes before the run fails
_LOST = ("closed by peer", "reset by peer", "timed out", "timeout", "connection refused", "broken pipe", "gloo", "nccl")


@dataclass(frozen=True)
class World:
    """The rank of this process in its run. With a single process every collective is a no-op."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    control: Any = None  # a gloo group for control messages, so that they never wait for a device

    @property
    def main(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def max(self, *values: int) -> list[int]:
        """Return the maximum of each value over all processes.

        Args:
            *values: Integers of this process.

        Returns:
            One maximum per value.
        """
        return list(values) if self.size == 1 else self._reduced(values, torch.int64, dist.ReduceOp.MAX)

    def sum(self, *values: float) -> list[float]:
        """Return the sum of each value over all processes.

        Args:
            *values: Numbers of this process.

        Returns:
            One sum per value.
        """
        return list(values) if self.size == 1 else self._reduced(values, torch.float64, dist.ReduceOp.SUM)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean over all processes, without synchronizing the device.

        Args:
            value: A tensor of this process.

        Returns:
            The mean, on the same device.
        """
        if self.size == 1:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value / self.size

    def all_gather_int(self, number: int) -> list[int]:
        """Gather one integer of each process.

        Args:
            number: The integer of this process.

        Returns:
            The integers, by rank.
        """
        if self.size == 1:
            return [number]
        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.rank] = number
        dist.all_reduce(numbers, group=self.control)
        return numbers.tolist()

    def broadcast(self, content: bytes) -> bytes:
        """Send the main process's bytes to every process.

        Args:
            content: The bytes; ignored on the other processes.

        Returns:
            The main process's bytes.
        """
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

    def all_gather(self, content: bytes) -> list[bytes]:
        """Gather the bytes of all processes on every process.

        Args:
            content: The bytes of this process.

        Returns:
            The bytes, by rank.
        """
        if self.size == 1:
            return [content]
        contents = []
        for rank, length in enumerate(self.all_gather_int(len(content))):
            payload = content if rank == self.rank else bytes(length)
            buffer = torch.tensor(bytearray(payload), dtype=torch.uint8)
            if length:
                dist.broadcast(buffer, rank, group=self.control)
            contents.append(buffer.numpy().tobytes())
        return contents

    def on_main(self, work: Callable[[], Any]) -> Any:
        """Run a function on the main process only, and share its result or exception with every process.

        Args:
            work: Returns plain values that JSON can hold.

        Returns:
            The result of `work`.

        Raises:
            MainProcessFailed: On the other processes, if `work` raised on the main process.
        """
        if self.size == 1:
            return work()
        if not self.main:
            reply = json.loads(self.broadcast(b""))
            if "error" in reply:
                raise MainProcessFailed(reply["error"], reply["exit_code"], already_reported=True)
            return reply["value"]
        try:
            value = work()
        except Exception as error:
            code = getattr(error, "exit_code", 2 if isinstance(error, (ValueError, OSError)) else 1)
            self.broadcast(json.dumps({"error": str(error), "exit_code": code}).encode())
            raise
        self.broadcast(json.dumps({"value": value}).encode())
        return value

    @contextlib.contextmanager
    def first_on_each_machine(self) -> Iterator[None]:
        """Let one process per machine run the block before the others, so that only it downloads.

        Yields:
            Nothing.
        """
        if self.size > 1 and self.local_rank:
            dist.barrier(group=self.control)
        yield
        if self.size > 1 and not self.local_rank:
            dist.barrier(group=self.control)

    def barrier(self) -> None:
        """Wait for all processes. A process that exits while gloo still holds tensors would be aborted."""
        if self.size > 1:
            dist.barrier(group=self.control)

    def share_buffers(self, model: nn.Module) -> None:
        """Broadcast the main process's running statistics; during training each process keeps its own.

        Args:
            model: The model whose buffers are overwritten.
        """
        for buffer in model.buffers() if self.size > 1 else ():
            dist.broadcast(buffer, 0)

    def _reduced(self, values: Any, dtype: torch.dtype, how: Any) -> list[Any]:
        tensor = torch.tensor(values, dtype=dtype)
        dist.all_reduce(tensor, op=how, group=self.control)
        return tensor.tolist()


def world_from_environment() -> World:
    """Return rank and world size before the process group exists, from torchrun's environment variables."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    if "RANK" not in os.environ:
        return World()
    return World(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))


def join(device: str = "auto") -> World:
    """Join the process group that torchrun, or the caller by `init_process_group`, has set up, if any.

    Args:
        device: Device of the recipe; NCCL is used unless it is a CPU.

    Returns:
        The world of this process.

    Raises:
        RunError: The timeout in the environment is not a number of seconds.
    """
    if not dist.is_available():
        return World()
    if not dist.is_initialized():
        if world_from_environment().size == 1:
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
    """Destroy the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_lost_peer(error: BaseException) -> bool:
    """Whether an exception means that another process no longer responds.

    Args:
        error: What a collective raised.

    Returns:
        True for connection errors and timeouts of gloo and NCCL.
    """
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
