"""The paper's numbers as data, and what stands beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _small import add

from _runs import a_result
from rankprune.lab.paper.index import TABLES, build, full_queue, render
from rankprune.lab.paper.queue import read_queue
from rankprune.lab.paper.records import Records
from rankprune.lab.paper.runs import Run
from rankprune.lab.paper.table import numbers
from rankprune.lab.recipes import RecipeError

QUEUE = Path(__file__).resolve().parents[3] / "results" / "queue.yaml"
EPOCHS = ("epochs=4",)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "queue.yaml").write_text(QUEUE.read_text())
    return tmp_path


def vgg(method: str, sparsity: float, seed: int = 0, **settings: object) -> Run:
    named = tuple((key.replace("__", "."), value) for key, value in settings.items())
    return Run("cifar10-cpu-vgg", method, sparsity, named, seed, EPOCHS)


def ours(results: Path, name: str, *first: str) -> tuple[str, ...]:
    (row,) = [row for row in build(name, results).rows if row[: len(first)] == first]
    return row


def test_paper_erratum_and_ours_side_by_side(results: Path) -> None:
    records = Records(results / "records")
    for seed, accuracy in enumerate((0.60, 0.62, 0.64)):
        add(records, vgg("rpg", 99.0, seed), accuracy)
    add(records, vgg("pbw", 99.9), 0.1)
    add(records, vgg("acdc", 99.9), None)
    add(records, vgg("gmp", 99.0), 0.5)
    write = ours(results, "cifar10", "VGG-19", "99", "RPG")
    # Seeds beyond the first count once the queue has them: the leaders' stage waits for all of table 1.
    assert write == ("VGG-19", "99", "RPG", "93.62", "", "60.00", "small VGG on CIFAR-10 at 16 pixels")
    assert ours(results, "cifar10", "VGG-19", "99.9", "PBW")[3:6] == ("10.00", "", "at chance (10.00)")
    assert ours(results, "cifar10", "VGG-19", "99.9", "AC/DC")[3:6] == ("78.91", "", "failed")
    assert ours(results, "cifar10", "VGG-19", "99", "GMP")[3:6] == ("", "", "50.00")
    assert ours(results, "cifar10", "VGG-19", "99.5", "RPG")[3:6] == ("93.13", "", "not run")
    assert ours(results, "cifar10", "ResNet-32", "99.5", "RPG")[3:6] == ("91.14", "withdrawn", "not run")
    assert ours(results, "cifar10", "ResNet-32", "99.9", "RPG")[3:5] == ("89.36", "withdrawn")
    notes = " ".join(build("cifar10", results).notes)
    assert "last epoch" in notes
    assert "failed: cifar10-cpu-vgg-acdc-99.9, seed 0: The loss is nan." in notes


def test_lambda_rows_and_the_mean_over_seeds(results: Path) -> None:
    text = QUEUE.read_text().replace("- name: lambda\n", "- name: lambda\n    seeds: [0, 1, 2]\n")
    (results / "queue.yaml").write_text(text)
    records = Records(results / "records")
    for seed, accuracy in enumerate((0.60, 0.62, 0.64)):
        add(records, vgg("rpg", 99.5, seed, method__lam=4, clip_norm=None), accuracy)
    row = ours(results, "lambda", "rank, mean over layers", "4")
    assert row[2:] == ("62.00 ± 1.15 (3)", "0.500 ± 0.000", "0.750 ± 0.000", "3 ± 0")
    assert ours(results, "lambda", "noise of its size, mean", "4")[2] == "not run"


def test_conditions_say_whether_the_term_helps(results: Path) -> None:
    records = Records(results / "records")
    for seed in range(3):
        add(records, vgg("rpg", 99.5, seed, method__lam=0), 0.60 + 0.001 * seed)
        add(records, vgg("rpg", 99.5, seed, method__lam=64), 0.70 + 0.001 * seed)
        for lam in (0, 64):
            add(records, vgg("rpg", 99.5, seed, method__lam=lam, method__every=100, amp="bf16"), 0.60 + 0.001 * seed)
    assert ours(results, "conditions", "cifar10-cpu-vgg at 99.5 %", "64")[4] == "yes"
    assert ours(results, "conditions", "cifar10-cpu-vgg at 99.5 %, bf16, every=100", "64")[4] == "no"
    add(records, vgg("rpg", 99.5, clip_norm=None, method__lam=0), 0.61)
    add(records, vgg("rpg", 99.5, clip_norm=None, method__lam=4, method__rank_signal="noise"), 0.59)
    row = ours(results, "conditions", "cifar10-cpu-vgg at 99.5 %, not clipped", "4, noise")
    assert row[2:5] == ("59.00", "61.00", "")


def test_clipped_and_not_stand_side_by_side(results: Path) -> None:
    records = Records(results / "records")
    add(records, vgg("feather", 99.5), 0.66)
    add(records, vgg("feather", 99.5, clip_norm=None), 0.19)
    table = build("clipping", results)
    assert table.head[3:5] == ("99.5 %", "99.5 %, not clipped")
    assert ours(results, "clipping", "feather")[3:5] == ("66.00", "19.00")


def test_data_are_never_mixed(results: Path) -> None:
    records = Records(results / "records")
    add(records, vgg("rpg", 99.0), 0.8, embedded=True)
    assert ours(results, "cifar10", "VGG-19", "99", "RPG")[5] == "80.00"
    assert any("embedded subset" in note for note in build("cifar10", results).notes)
    add(records, vgg("gmp", 99.0), 0.5)
    assert ours(results, "cifar10", "VGG-19", "99", "RPG")[5] == "not run"
    assert ours(results, "cifar10", "VGG-19", "99", "GMP")[5] == "50.00"


def test_best_needs_evidence(results: Path) -> None:
    def said() -> str:
        (note,) = [note for note in build("combinations", results).notes if note.startswith("best:")]
        return note

    assert "not decided; no method has been run on 3 seeds" in said()
    records = Records(results / "records")
    text = re.sub(r"leading: \{of: table-1.*\}", "methods: [gmp]", QUEUE.read_text())
    text = re.sub(r"leading: \{of: extras.*\}", "methods: [gmp+rank_floor, rpg+rank_floor]", text)
    (results / "queue.yaml").write_text(text)

    def three(method: str, accuracy: float) -> None:
        for sparsity in (99.0, 99.5):
            for seed in range(3):
                add(records, vgg(method, sparsity, seed), accuracy + 0.001 * seed)

    three("gmp", 0.60)
    assert "not decided; no combination has been run on 3 seeds" in said()
    three("rpg+rank_floor", 0.601)
    assert "none of rpg+rank_floor beats every leading single method (gmp)" in said()
    three("gmp+rank_floor", 0.61)
    assert "gmp+rank_floor beats every leading single method (gmp) by more than two" in said()
    assert ours(results, "combinations", "gmp+rank_floor")[1:4] == ("not run", "61.10 ± 0.06 (3)", "61.10 ± 0.06 (3)")


def test_all_tables_render(results: Path) -> None:
    written = render(results)
    assert {path.stem for path in written} == set(TABLES)
    lines = (results / "tables" / "imagenet.md").read_text().splitlines()
    assert lines[0].startswith("# Table 2")
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert render(results, "full") == []  # nothing of it has been run


def test_an_unknown_table_is_a_sentence(results: Path) -> None:
    with pytest.raises(RecipeError, match="The paper has no table 'cifar100': did you mean 'cifar10'"):
        build("cifar100", results)


def test_the_full_queue_has_every_row_of_the_paper() -> None:
    names = {run.name for run in full_queue().runs()}
    for name in ("cifar10-vgg19-rpg-99.9", "cifar10-resnet32-pbw-99", "imagenet-resnet50-str-80", "imagenet-resnet50-rpg-scratch-95",
                 "coco-maskrcnn-rigl-70", "imagenet-resnet50-dense"):  # fmt: skip
        assert name in names
    assert not QUEUE.parent.joinpath("no").exists()
    assert read_queue(QUEUE, Records("no")).runs()


def latex_rows(shared: Path, label: str) -> list[list[str]]:
    """Cells of the table of the paper's source that carries a label, without its macros."""
    source = (shared / "docs" / "000_264f730f6d1a8a6d.txt").read_text()
    body = source[: source.index(f"\\label{{{label}}}")]
    body = body[body.rindex("\\begin{tabular}") :]
    for macro in (r"\\textbf\{([^{}]*)\}", r"\\underline\{([^{}]*)\}", r"\\multicolumn\{\d\}\{\w\}\{([^{}]*)\}"):
        body = re.sub(macro, r"\1", body)
    return [[re.sub(r"~?\\cite\{\w+\}|\(Ours\)", "", c).strip() for c in line.split("&")] for line in body.split("\\\\")]


WORDS = {"PBW": "pbw", "MLPrune": "mlprune", "ProbMask": "probmask", "AC/DC": "acdc", "RPG": "rpg", "STR": "str",
         "WoodFisher": "woodfisher", "GraNet": "granet", "PowerPropagation": "powerprop", "SViT-E": "svite", "RigL": "rigl"}  # fmt: skip


def test_table_1_is_the_papers(shared: Path) -> None:
    data = numbers()["cifar10"]["nets"]
    found = 0
    for name, *cells in latex_rows(shared, "cifar10"):
        if method := WORDS.get(name.split("\n")[-1].strip()):
            mine = [data[net]["paper"][s][method] for net in ("VGG-19", "ResNet-32") for s in (99, 99.5, 99.9)]
            assert [float(c) for c in cells] == mine
            found += 1
    assert found == 5


@pytest.mark.parametrize(("label", "name", "rows"), [("resnet50imagenet", "imagenet", 25), ("deit_imagenet", "deit", 8)])
def test_long_tables_are_the_papers(shared: Path, label: str, name: str, rows: int) -> None:
    (net,) = numbers()[name]["nets"].values()
    found = 0
    for row in latex_rows(shared, label):
        method = WORDS.get(row[0].replace("\\midrule", "").split("\n")[-1].strip())
        if method and len(row) == 3 and "%" not in row[0]:
            assert float(row[2]) == net["paper"][round(100 * float(row[1]))][method]
            found += 1
    assert found == rows


def test_mask_rcnn_and_runtime_are_the_papers(shared: Path) -> None:
    data = numbers()
    boxes = [row for row in latex_rows(shared, "maskrcnncoco") if WORDS.get(row[0].split("\n")[-1].strip())]
    assert len(boxes) == 9
    for name, sparsity, *both in boxes:
        assert [float(x) for x in both] == data["maskrcnn"]["paper"][round(100 * float(sparsity))][WORDS[name.split("\n")[-1].strip()]]
    times = [row for row in latex_rows(shared, "sparsespeed") if row[-1].endswith("ms")]
    assert [[float(ms[:-2]), float(top1)] for _, top1, ms in times] == list(data["runtime"]["paper"].values())


def test_the_long_regime_has_a_table_of_its_own(tmp_path: Path) -> None:
    """What was run, with what became of growth; and no run of it in the tables of short training."""
    stages = "stages:\n  - {name: long, task: cifar10-long-vgg, methods: [gmp, rpg], sparsities: [99.5], vary: [{method.lam: ['ratio:1']}]}\n"
    stages += "  - {name: short, task: cifar10-cpu-vgg, methods: [gmp], sparsities: [99.5]}\n"
    (tmp_path / "queue.yaml").write_text(stages.replace("methods: [gmp, rpg]", "methods: [rpg]"))
    run = Run("cifar10-long-vgg", "rpg", 99.5, (("method.lam", "ratio:1"),))
    record = {"run": run.key(), "name": run.name, "seed": 0, "code": "0.1.0-a", "recipe": run.recipe().model_dump(mode="json"), "environment": {}}
    other = {"delta_rank_ratio": 0.8, "dead_filters": 12, "steps": 62480, "updates": 500, "survival": {"1": 0.5, "3": 0.25, "10": 0.125}}
    result = a_result(run.name, 0.7, 0.995, 5, 1000, **other)
    Records(tmp_path / "records").add({**record, "result": result})
    table = build("long", tmp_path)
    assert (table.done, table.planned) == (1, 1)
    assert table.rows == [("small VGG", "99.5 %", "RPG", "lam=ratio:1", "70.00", "0.800", "12", "62,480", "500", "0.50", "0.25", "0.12")]
    assert all("70.00" not in row for name in ("rank", "flops", "combinations") for row in build(name, tmp_path).rows)


def test_runs_on_held_out_images_are_in_their_own_table_alone(tmp_path: Path) -> None:
    """A choice and its evidence; an accuracy on training images is in no table of test accuracies."""
    vary = "{data.holdout: [5000], clip_norm: [1.0]}"
    stages = f"stages: [{{name: tune, task: cifar10-long-vgg, methods: [gmp], sparsities: [99.5], vary: [{vary}]}}]\n"
    (tmp_path / "queue.yaml").write_text(stages)
    run = Run("cifar10-long-vgg", "gmp", 99.5, (("data.holdout", 5000), ("clip_norm", 1.0)))
    result = a_result(run.name, 0.7, 0.995, 5, 1000, delta_rank_ratio=0.8)
    record = {"run": run.key(), "name": run.name, "seed": 0, "code": "0.1.0-a", "recipe": run.recipe().model_dump(mode="json")}
    Records(tmp_path / "records").add({**record, "environment": {}, "result": result})
    assert [row[2:5] for row in build("tuning", tmp_path).rows] == [("GMP", "clip_norm=1.0", "70.00")]
    assert all("70.00" not in row for name in ("long", "rank", "flops", "combinations") for row in build(name, tmp_path).rows)


def test_titles_say_what_ran_and_detection_has_no_numbers_of_smoke_runs(results: Path) -> None:
    project = Path(__file__).resolve().parents[3] / "results"
    if not project.is_dir():
        pytest.skip("the results are not part of an installed package")
    imagenet = build("imagenet", project)
    assert imagenet.title.endswith("; ours: ResNet-20 on CIFAR-10 at 16 pixels; 0 at full scale")
    assert {row[-1] for row in imagenet.rows} <= {"ResNet-20 on CIFAR-10 at 16 pixels", ""}
    assert {cell for row in build("maskrcnn", project).rows for cell in row[4:]} == {"not run"}
