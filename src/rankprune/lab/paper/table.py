"""A table as Markdown, in columns that line up on a terminal too."""

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
    "ours: test top-1 of the last epoch, with exactly the weights of the target sparsity; no epoch was chosen by the "
    "test set. Mean ± standard error (number of seeds) where there are several. Who leads after "
    "the first seed is run with more. At chance: within 3 points of 10 %."
)
EMBEDDED_NOTE = "ours: on the embedded slice of Fashion-MNIST, because CIFAR-10 was not there."


@dataclass
class Table:
    name: str
    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: int = 0  # runs that have a record
    planned: int = 0
    ran: str = ""  # networks and data of those runs

    def __str__(self) -> str:
        widths = [max(len(line[i]) for line in (self.head, *self.rows)) for i in range(len(self.head))]
        lines = [f"# {self.title}", ""]
        lines += [_line(self.head, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
        lines += [_line(row, widths) for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)]) + "\n"

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name, "title": self.title, "done": self.done, "planned": self.planned,
            "ran": self.ran,            "rows": [dict(zip(self.head, row)) for row in self.rows], "notes": self.notes,
        }  # fmt: skip


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"


class Evidence:
    """The planned runs and their records, asked for by what a row of a table says."""

    def __init__(self, queue: Queue, records: Records, of: Callable[[Run], bool] = lambda run: True) -> None:
        """Evidence from the queue's runs, or from those of them that `of` chooses."""
        self.records = records
        self.runs = [run for run in queue.runs() if of(run)]
        self.embedded = on_embedded(self.runs, records)
        self.used: list[Record] = []
        self.asked: set[Run] = set()

    def find(
        self, task: str, method: str, sparsity: float | None, settings: Iterable[tuple[str, object]] = (),
        pretrained: bool = False, smoke: bool = False,
    ) -> list[Run]:  # fmt: skip
        """Planned runs that differ in their seed alone."""
        want = (task, method, None if method == "dense" else sparsity, frozenset(settings), pretrained, smoke)

        def setting(r: Run) -> tuple[object, ...]:
            return (r.task, r.method, r.percent, frozenset(r.settings), r.pretrained, r.smoke)

        return [run for run in self.runs if setting(run) == want]

    def _record(self, run: Run) -> Record | None:
        return record_of(run, self.records, self.embedded)

    def records_of(self, runs: Sequence[Run]) -> list[Record]:
        self.asked |= set(runs)
        found = [record for run in runs if (record := self._record(run)) is not None]
        self.used += [record for record in found if record not in self.used]
        return found

    def values(self, runs: Sequence[Run], value: Value) -> list[float]:
        """A value of each result that has it; runs that failed have no result."""
        results = [result for record in self.records_of(runs) if (result := result_of(record)) is not None]
        return [float(found) for result in results if (found := value(result)) is not None]

    def accuracy(self, runs: Sequence[Run], planned: str = "not run") -> str:
        """What stands in the column `ours`."""
        found = self.records_of(runs)
        values = [value for record in found if (value := accuracy(record)) is not None]
        failed = [record for record in found if "failed" in record]
        if values:
            return percent(values) + (f", {len(failed)} failed" if failed else "")
        if failed:
            return "failed"
        missing = [run.name for run in runs if not run.known()]
        return f"no recipe {missing[0]}" if missing else planned

    def ran_on(self, runs: Sequence[Run]) -> str:
        """Network and data of the runs that have a record; empty where none has."""
        return ", ".join(dict.fromkeys(net_and_data(record) for record in self.records_of(runs) if "recipe" in record))

    def number(self, runs: Sequence[Run], value: Value, digits: int = 3) -> str:
        """Mean ± standard error of a value; empty where there is none."""
        values = self.values(runs, value)
        return number(values, digits) if values else ""

    def macs(self, runs: Sequence[Run]) -> float | None:
        """Of one image, as a share of the dense net's; None where there is no record."""
        sparse, dense = self.values(runs, lambda r: r.macs_sparse), self.values(runs, lambda r: r.macs_dense)
        return sum(sparse) / sum(dense) if dense else None

    def finish(self, table: Table) -> Table:
        """Notes on where the numbers come from, and how much of the table there is."""
        table.planned = len(self.asked)
        table.done = sum(self._record(run) is not None for run in self.asked)
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
    """What a record is of, in words: "ResNet-20 on CIFAR-10 at 16 pixels"."""
    model, data = record["recipe"]["model"]["name"], record["recipe"]["data"]
    size = f" at {data['image_size']} pixels" if data["image_size"] else ""
    steps = ", a few steps" if record.get("smoke") else ""
    return f"{_NETS.get(model, model)} on {_DATA.get(data['name'], data['name'])}{size}{steps}"


def _setting(record: Record) -> str:
    recipe = record["recipe"]
    size, epochs = recipe["data"]["image_size"], recipe["epochs"]
    start = " from the dense net" if record.get("pretrained") else ""
    data = recipe["data"]["name"] + (f" at {size} pixels" if size else "")
    return f"{recipe['model']['name']}{start}, {data}, {'a few steps' if record.get('smoke') else f'{epochs} epochs'}"


def numbers() -> dict[str, dict]:
    """The paper's own, by table."""
    return read(NUMBERS)


def named(run: Run) -> str:
    """A method as tables and figures call it, with its extras."""
    method, plus, extras = run.method.partition("+")
    return NAMES.get(method, method) + plus + extras + (", ERK" if run.settings else "")


def method_of(label: str) -> str:
    """The method of a label that `named` gave; what is no method's name is RPG in one of its variants."""
    name = label.partition(",")[0].partition("+")[0]
    known = {shown: method for method, shown in NAMES.items()}
    return known.get(name, name if name.islower() and " " not in name else "rpg")


def plain(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
