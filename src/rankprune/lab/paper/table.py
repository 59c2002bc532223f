"""A Markdown table whose columns are aligned on a terminal as well, and the evidence that fills its cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankprune.lab.recipes.yaml_file import read
from rankprune.lab.runs.result import RunResult

from .evidence import number, percent
from .queue import Queue, accuracy, on_embedded, record_of
from .records import Record, Records, result_of
from .runs import Run

Value = Callable[[RunResult], float | None]
NUMBERS = Path(__file__).with_name("numbers.yaml")
NAMES = {
    "dense": "dense", "pbw": "PBW", "mlprune": "MLPrune", "probmask": "ProbMask", "acdc": "AC/DC", "rpg": "RPG",
    "str": "STR", "woodfisher": "WoodFisher", "granet": "GraNet", "powerprop": "PowerPropagation", "gmp": "GMP",
    "rigl": "RigL", "feather": "Feather", "svite": "SViT-E", "topkast": "Top-KAST",
}  # fmt: skip
PROTOCOL = (
    "ours: test top-1 accuracy of the last epoch at exactly the target sparsity; no epoch was chosen on the test set. "
    "Mean ± standard error (number of seeds) where there are several; methods that lead with the first seed are run "
    "with more. At chance: within 3 points of 10 %."
)
EMBEDDED_NOTE = "ours: on the embedded subset of Fashion-MNIST, because CIFAR-10 was missing."


@dataclass
class Table:
    """A table with a title and notes.

    Attributes:
        name: Name on the command line and of the file.
        title: First line.
        head: Column titles.
        rows: Cells as text.
        notes: Listed below the table.
        done: Number of its runs that have a record.
        planned: Number of its runs.
        ran: Networks and data of the finished runs.
    """

    name: str
    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: int = 0
    planned: int = 0
    ran: str = ""

    def __str__(self) -> str:
        widths = [max(len(line[i]) for line in (self.head, *self.rows)) for i in range(len(self.head))]
        lines = [f"# {self.title}", ""]
        lines += [_line(self.head, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
        lines += [_line(row, widths) for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)]) + "\n"

    def to_dict(self) -> dict[str, object]:
        """Return the table as plain values, for JSON."""
        return {
            "name": self.name, "title": self.title, "done": self.done, "planned": self.planned,
            "ran": self.ran, "rows": [dict(zip(self.head, row)) for row in self.rows], "notes": self.notes,
        }  # fmt: skip


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"


class Evidence:
    """The planned runs and their records, queried by the rows of a table.

    Args:
        queue: The queue.
        records: The records so far.
        of: Selects the runs to use; by default all.
    """

    def __init__(self, queue: Queue, records: Records, of: Callable[[Run], bool] = lambda run: True) -> None:
        self.records = records
        self.runs = [run for run in queue.runs() if of(run)]
        self.embedded = on_embedded(self.runs, records)
        self.used: list[Record] = []
        self.table_runs: set[Run] = set()

    def find(
        self, task: str, method: str, sparsity: float | None, settings: Iterable[tuple[str, object]] = (),
        pretrained: bool = False, smoke: bool = False, distilled: bool = False,
    ) -> list[Run]:  # fmt: skip
        """Return the planned runs of one setting, which differ only in their seed.

        Args:
            task: The task.
            method: The method with its extras, or "dense".
            sparsity: In percent; ignored for dense runs.
            settings: Changed settings, in any order.
            pretrained: Whether they start from the dense run.
            smoke: Whether they are smoke runs.
            distilled: Whether they learn from the dense run.

        Returns:
            The runs.
        """
        percent = None if method == "dense" else sparsity
        want = (task, method, percent, frozenset(settings), pretrained, smoke, distilled)

        def setting(r: Run) -> tuple[object, ...]:
            return (r.task, r.method, r.percent, frozenset(r.settings), r.pretrained, r.smoke, r.distilled)

        return [run for run in self.runs if setting(run) == want]

    def _record(self, run: Run) -> Record | None:
        return record_of(run, self.records, self.embedded)

    def records_of(self, runs: Sequence[Run]) -> list[Record]:
        """Return the newest record of each run that has one, and count the runs as part of the table.

        Args:
            runs: The runs.

        Returns:
            The records.
        """
        self.table_runs |= set(runs)
        records = [record for run in runs if (record := self._record(run)) is not None]
        self.used += [record for record in records if record not in self.used]
        return records

    def values(self, runs: Sequence[Run], value: Value) -> list[float]:
        """Return a value of each result that has it. Failed runs have no result.

        Args:
            runs: The runs.
            value: Reads the value; None if the result does not have it.

        Returns:
            The values.
        """
        results = [result for record in self.records_of(runs) if (result := result_of(record)) is not None]
        return [float(number) for result in results if (number := value(result)) is not None]

    def accuracy(self, runs: Sequence[Run], planned: str = "not run") -> str:
        """Format the accuracy of some runs as a cell.

        Args:
            runs: Runs that differ only in their seed.
            planned: The text if none has a record.

        Returns:
            Mean and standard error in percent, "failed", or why there is no number.
        """
        records = self.records_of(runs)
        values = [value for record in records if (value := accuracy(record)) is not None]
        failed = [record for record in records if "failed" in record]
        if values:
            return percent(values) + (f", {len(failed)} failed" if failed else "")
        if failed:
            return "failed"
        missing = [run.name for run in runs if not run.known()]
        return f"no recipe {missing[0]}" if missing else planned

    def ran_on(self, runs: Sequence[Run]) -> str:
        """Return network and data of the runs that have a record.

        Args:
            runs: The runs.

        Returns:
            Such as "ResNet-20 on CIFAR-10 at 16 pixels"; empty if no run has a record.
        """
        return ", ".join(dict.fromkeys(net_and_data(record) for record in self.records_of(runs) if "recipe" in record))

    def number(self, runs: Sequence[Run], value: Value, digits: int = 3) -> str:
        """Format mean and standard error of a value as a cell.

        Args:
            runs: Runs that differ only in their seed.
            value: Reads the value of a result.
            digits: Decimal places.

        Returns:
            The text; empty if there is no value.
        """
        values = self.values(runs, value)
        return number(values, digits) if values else ""

    def macs(self, runs: Sequence[Run]) -> float | None:
        """Return the MACs of one image as a fraction of the dense network's.

        Args:
            runs: Runs that differ only in their seed.

        Returns:
            The fraction, or None if no run has a record.
        """
        sparse, dense = self.values(runs, lambda r: r.macs_sparse), self.values(runs, lambda r: r.macs_dense)
        return sum(sparse) / sum(dense) if dense else None

    def finish(self, table: Table) -> Table:
        """Add notes on the origin of the numbers, and count the finished runs of the table.

        Args:
            table: The table, with its rows.

        Returns:
            The same table.
        """
        table.planned = len(self.table_runs)
        table.done = sum(self._record(run) is not None for run in self.table_runs)
        settings = Counter(_setting(record) for record in self.used if "recipe" in record)
        table.ran = ", ".join(dict.fromkeys(net_and_data(record) for record in self.used if "recipe" in record))
        if settings:
            parts = [f"{text} ({count})" for text, count in settings.most_common()]
            table.notes.append(f"runs: {'; '.join(parts)}.")
        if self.embedded:
            table.notes.append(EMBEDDED_NOTE)
        for record in self.used:
            if "failed" in record:
                table.notes.append(f"failed: {record['name']}, seed {record['seed']}: {record['failed']}")
        codes = Counter(str(record["code"]) for record in self.used)
        if codes:
            table.notes.append("code: " + ", ".join(f"{code} ({count})" for code, count in codes.most_common()) + ".")
        return table


_NETS = {
    "cifar-resnet20": "ResNet-20", "cifar-resnet32": "ResNet-32", "vgg-small": "small VGG", "cifar-vgg19": "VGG-19",
    "vit-tiny-cpu": "tiny ViT", "maskrcnn-resnet50-fpn": "Mask R-CNN", "torchvision:resnet50": "ResNet-50",
}  # fmt: skip
_DATA = {"cifar10": "CIFAR-10", "fashion": "Fashion-MNIST", "coco": "COCO", "imagefolder": "ImageNet"}


def net_and_data(record: Record) -> str:
    """Return network and data of a record as text: "ResNet-20 on CIFAR-10 at 16 pixels".

    Args:
        record: A record of a training run.

    Returns:
        The text.
    """
    model, data = record["recipe"]["model"]["name"], record["recipe"]["data"]
    size = f" at {data['image_size']} pixels" if data["image_size"] else ""
    steps = ", a few steps" if record.get("smoke") else ""
    return f"{_NETS.get(model, model)} on {_DATA.get(data['name'], data['name'])}{size}{steps}"


def _setting(record: Record) -> str:
    recipe = record["recipe"]
    size, epochs = recipe["data"]["image_size"], recipe["epochs"]
    start = " from the dense net" if record.get("pretrained") else ""
    start += " taught by the dense net" if record.get("distilled") else ""
    data = recipe["data"]["name"] + (f" at {size} pixels" if size else "")
    return f"{recipe['model']['name']}{start}, {data}, {'a few steps' if record.get('smoke') else f'{epochs} epochs'}"


def numbers() -> dict[str, dict]:
    """Return the numbers that the paper prints, by table."""
    return read(NUMBERS)


def named(run: Run) -> str:
    """Return the label of a run's method in tables and figures, with its extras.

    Args:
        run: The run.

    Returns:
        Such as "RPG+ham" or "RigL, ERK".
    """
    method, plus, extras = run.method.partition("+")
    return NAMES.get(method, method) + plus + extras + (", ERK" if run.settings else "")


def method_of(label: str) -> str:
    """Return the method of a label that `named` made. A label that is not a method's name is a variant of RPG.

    Args:
        label: The label.

    Returns:
        Registered name of the method.
    """
    name = label.partition(",")[0].partition("+")[0]
    known = {shown: method for method, shown in NAMES.items()}
    return known.get(name, name if name.islower() and " " not in name else "rpg")


def plain(value: float | None) -> str:
    """Format a number with two decimal places.

    Args:
        value: The number, or None.

    Returns:
        The text; empty for None.
    """
    return "" if value is None else f"{value:.2f}"
