"""All tables by name, and rendering them to files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from rankprune._util import nearest, write_atomic
from rankprune.lab.recipes.errors import RecipeError
from rankprune.lab.runs.run_folder import writing

from . import tables_long, tables_ours, tables_paper
from .queue import Queue, read_queue
from .records import Records
from .runs import Run
from .table import Evidence, Table, numbers
from .tables_paper import Scale

TABLES: dict[str, Callable[[Evidence, Scale], Table]] = {
    "long": tables_long.long,
    "tuning": tables_long.tuning,
    "cifar10": partial(tables_paper.accuracies, "cifar10"),
    "imagenet": partial(tables_paper.accuracies, "imagenet"),
    "runtime": tables_paper.runtime,
    "maskrcnn": tables_paper.maskrcnn,
    "deit": partial(tables_paper.accuracies, "deit"),
    "scratch": tables_paper.scratch,
    "lambda": tables_ours.lambdas,
    "rank": tables_ours.ranks,
    "flops": tables_ours.flops,
    "overhead": tables_paper.overhead,
    "clipping": tables_ours.clipping,
    "combinations": tables_ours.combinations,
    "conditions": tables_ours.conditions,
    "growth": tables_ours.growth,
}
# The runs that belong to these tables. All other tables use the runs that belong to none of them.
_REGIMES: dict[str, Callable[[Run], bool]] = {"long": tables_long.is_long, "tuning": tables_long.is_tuning}


def build(name: str, results: Path, scale: Scale = "cpu") -> Table:
    """Build a table from the records so far.

    Args:
        name: One of `TABLES`.
        results: Folder that holds queue.yaml and records/.
        scale: "cpu" for the queue's runs, "full" for the paper's own networks and lengths.

    Returns:
        The table.

    Raises:
        RecipeError: There is no such table, or the queue is invalid.
    """
    if name not in TABLES:
        raise RecipeError(f"The paper has no table {name!r}: {nearest(name, TABLES)}")
    records = Records(results / "records")
    queue = read_queue(results / "queue.yaml", records) if scale == "cpu" else full_queue()
    chosen = _REGIMES.get(name, lambda run: not any(other(run) for other in _REGIMES.values()))
    return TABLES[name](Evidence(queue, records, chosen), scale)


def render(results: Path, scale: Scale = "cpu") -> list[Path]:
    """Write every table to tables/. The files are overwritten; the records are the source.

    Args:
        results: Folder that holds queue.yaml and records/.
        scale: "cpu" or "full"; of the latter, only tables with finished runs are written.

    Returns:
        The files.
    """
    folder, written = results / "tables", []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in TABLES:
            table = build(name, results, scale)
            if scale == "cpu" or table.done:
                written.append(folder / f"{name}{'' if scale == 'cpu' else '-full'}.md")
                write_atomic(written[-1], str(table).encode())
    return written


def full_queue() -> Queue:
    """Return the full-scale runs of every row of the paper, table by table. Some of them may have no recipe."""
    data, runs = numbers(), []
    for name in ("cifar10", "imagenet", "deit"):
        for net in data[name]["nets"].values():
            runs.append(Run(net["full"], "dense"))
            runs += [Run(net["full"], method, float(s)) for s, row in net["paper"].items() for method in row]
    resnet50 = data["scratch"]["nets"]["ResNet-50"]["full"]
    runs += [Run(resnet50, "rpg-scratch", float(s)) for s in data["scratch"]["paper"]]
    runs += [Run(resnet50, method, float(s)) for s in (80, 90, 95, 98) for method in ("powerprop-erk", "topkast-erk")]
    coco = data["maskrcnn"]
    runs.append(Run(coco["task"], "dense"))
    runs += [Run(coco["task"], method, float(s)) for s, row in coco["paper"].items() for method in row]
    figure = data["lambda"]
    for _, kind in tables_ours.KINDS:
        lams = figure["lams"][1:] if kind else figure["lams"]
        runs += [Run(figure["full"], "rpg", figure["sparsity"], (("method.lam", lam), *kind)) for lam in lams]
    return Queue([("full", run) for run in dict.fromkeys(runs)])
