"""Runs orders as tasks on a Ray cluster; Ray restarts a task whose process is killed, and its run resumes."""

from __future__ import annotations

import os
import time
from typing import Any

from rankprune._util import need

from .runner import RETRIES, Done, Order, Reply, Source
from .worker import work

LOCAL = "local"


class RayRunner:
    """Runs orders on a Ray cluster whose machines share the run folders and have rankprune installed.

    A task takes one CPU, and one GPU if the cluster has any.

    Args:
        jobs: Number of tasks at a time; by default as many as fit.
        address: Address of the cluster; "local" starts one on this machine.
    """

    def __init__(self, jobs: int | None = None, address: str = LOCAL) -> None:
        self.jobs, self.address = jobs, address

    def run(self, source: Source, done: Done, seconds: float | None = None) -> bool:
        """See `Runner.run`.

        Args:
            source: Returns the next order.
            done: Called with each order that ended.
            seconds: Stop after this time; None for no limit.

        Returns:
            True if no orders were left, False if the time was up.
        """
        ray = need("ray", "ray", "A sweep on a cluster")
        ours = not ray.is_initialized()
        if ours:
            dashboard = False if self.address == LOCAL else None
            ray.init(address=self.address, include_dashboard=dashboard, log_to_driver=False)
        try:
            return self._run(ray, source, done, None if seconds is None else time.monotonic() + seconds)
        finally:
            if ours:
                ray.shutdown()

    def _run(self, ray: Any, source: Source, done: Done, until: float | None) -> bool:
        resources = ray.cluster_resources()
        gpus = 1 if resources.get("GPU") else 0
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_task)
        # Tasks beyond this limit would wait in Ray's queue, where the source can no longer reorder them.
        limit = self.jobs or max(1, int(resources.get("GPU" if gpus else "CPU", 1)))
        running: dict[Any, Order] = {}
        while True:
            while len(running) < limit and (until is None or time.monotonic() < until):
                if (order := source(not running)) is None:
                    break
                running[task.remote(order.to_dict(), os.getcwd())] = order
            if not running:
                return until is None or time.monotonic() < until
            left = None if until is None else max(until - time.monotonic(), 0)
            ready, _ = ray.wait(list(running), num_returns=1, timeout=left)
            if not ready:  # the time is up; a cancelled task can be resumed from its last checkpoint
                for reference in running:
                    ray.cancel(reference)
                return False
            order = running.pop(ready[0])
            try:
                reply = Reply.from_dict(ray.get(ready[0]))
            except ray.exceptions.RayError as error:  # killed too often, or its machine is gone
                text = str(error).strip().splitlines()[0]
                reply = Reply(failure=f"Ray gave up on it ({type(error).__name__}: {text})", code=1)
            done(order, reply)


def _task(order: dict[str, Any], folder: str) -> dict[str, Any]:
    if os.path.isdir(folder):
        os.chdir(folder)  # a recipe may name data by a relative path
    return work(order).to_dict()
