"""The runs of a sweep as tasks of a Ray cluster; Ray starts a task again whose process is killed, and it resumes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankprune._util import need
from rankprune.lab.recipes.schema import Recipe
from rankprune.lab.training.watch import Watcher

from .local_trials import RETRIES
from .trial import order_of, work

LOCAL = "local"


class RayTrials:
    """On the cluster at `address` ("local" starts one here). Its machines share the folder `out` and have rankprune.

    A task takes one CPU, and one GPU where the cluster has any; `jobs` limits how many run at a time.
    """

    def __init__(self, out: str | Path, watcher: Watcher, jobs: int | None = None, address: str = LOCAL) -> None:
        self.out, self.watcher, self.jobs, self.address = out, watcher, jobs, address

    def run(self, recipes: Sequence[Recipe]) -> list[dict[str, Any]]:
        ray = need("ray", "ray", "A sweep on a cluster")
        ours = not ray.is_initialized()
        if ours:
            dashboard = False if self.address == LOCAL else None
            ray.init(address=self.address, include_dashboard=dashboard, log_to_driver=False)
        try:
            gpus = 1 if ray.cluster_resources().get("GPU") else 0
            task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_task)
            waiting = list(enumerate(order_of(recipe, self.out) for recipe in recipes))
            running: dict[Any, int] = {}
            found: dict[int, dict[str, Any]] = {}
            while waiting or running:
                while waiting and len(running) < (self.jobs or len(recipes)):
                    index, order = waiting.pop(0)
                    running[task.remote(order, os.getcwd())] = index
                (ready,), _ = ray.wait(list(running), num_returns=1)
                index = running.pop(ready)
                try:
                    found[index] = ray.get(ready)
                except ray.exceptions.RayError as error:  # killed too often, or its machine is gone
                    text = str(error).strip().splitlines()[0]
                    found[index] = {"failure": f"Ray gave up on it ({type(error).__name__}: {text})", "code": 1}
                name, seed = recipes[index].name, recipes[index].seed
                self.watcher.message(f"{name} (seed {seed}) is over, {len(found)} of {len(recipes)}.")
            return [found[index] for index in range(len(recipes))]
        finally:
            if ours:
                ray.shutdown()


def _task(order: dict[str, Any], folder: str) -> dict[str, Any]:
    if os.path.isdir(folder):
        os.chdir(folder)  # a recipe may name data by a relative path
    return work(order)
