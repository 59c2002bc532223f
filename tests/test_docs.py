"""The docs hold: examples run and print what they say, links lead somewhere, tests and numbers named are there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rankprune as rp
from _nets import batch, cnn, sgd
from _pages import LANGUAGES, blocks

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
METHODS = sorted((DOCS / "methods").glob("*.md"))
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*.md")])
# Methods' pages that show what their example prints are run by tests/methods/test_pages.py, in the short suite.
SHOWN = {page for page in METHODS if "```text" in page.read_text(encoding="utf-8")}
RUN = [page for page in PAGES if page not in SHOWN and {"python", "sh"} & {b.language for b in blocks(page.read_text("utf-8"))}]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_method_has_a_page() -> None:
    assert {page.stem for page in METHODS} >= set(rp.list_methods())
    listed = (DOCS / "methods" / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in listed for name in rp.list_methods())
    assert all(f"`{name}`" in listed for name in rp.extras.list_extras())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}](docs/methods/{name}.md)" in readme for name in rp.list_methods())
    assert all(f"{len(rp.list_methods())} methods" in text for text in (readme, (DOCS / "index.md").read_text("utf-8")))


@pytest.mark.long
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "_pages.py"), str(page)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=500, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


# Every block that no test runs, by page and first line, with the reason.
NOT_RUN = {
    "README.md": {
        "pip install rankprune": "installs; benchmarks/install.py does it in an empty environment, test_demo_in_miniature runs the demo",
        "pip install torch torchvision": "installs; benchmarks/install.py does it in an empty environment",
        "@software{rankprune,": "a citation",
    },
    "CONTRIBUTING.md": {"make test": "runs this suite"},
    "docs/quickstart.md": {"pip install 'rankprune[lab]'": "installs; tests/cli/test_cli.py::test_demo_in_miniature runs the demo"},
    "docs/distributed.md": {"torchrun --nproc-per-node 8": "needs eight GPUs, ImageNet and four machines; the block before runs two processes"},
    "docs/recipes.md": {"rankprune train imagenet-resnet50-rpg-90": "needs ImageNet, COCO and eight GPUs; the block before runs in miniature"},
    "docs/results.md": {"rankprune paper run": "hours; tests/lab/paper/test_work.py runs a short queue"},
    "docs/report.md": {"rankprune watch": "serves until it is stopped; tests/lab/report/test_live.py runs it"},
    "docs/engine.md": {
        "// 1. kernels/api.h": "an excerpt of a source file, with ... for the rest",
        "3. backend/lower_other.py": "names of files, with what to add to each",
    },
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_listed_with_the_reason(page: Path) -> None:
    """Run: by `test_the_examples_run` or, for a method's page with its output, tests/methods/test_pages.py."""
    listed = dict(NOT_RUN.get(name_of(page), {}))
    for block in blocks(page.read_text(encoding="utf-8")):
        assert block.language in LANGUAGES, f"a block begins {block.code[:60]!r}: tag it {sorted(LANGUAGES)}"
        if block.title or block.language in {"python", "sh"}:
            assert page in SHOWN or page in RUN
        else:
            assert [listed.pop(first) for first in list(listed) if block.code.startswith(first)], f"not run: {block.code[:60]!r}"
    assert not listed, f"no longer there: {sorted(listed)}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as fragments, as GitHub and mkdocs both make them of plain words."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        if fragment and file.suffix == ".md":
            assert fragment in anchors(file), f"{name_of(page)} links to {target}"


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_the_faq_answers_all_asks_with_tests_that_exist() -> None:
    text = (DOCS / "faq.md").read_text(encoding="utf-8")
    answers = re.split(r"^### ", text, flags=re.M)[1:]
    assert [int(answer.split(".")[0]) for answer in answers] == list(range(1, 26))
    for answer in answers:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", answer)
        assert named, answer
        for file, function in named:
            assert function in functions(ROOT / file), f"{file}::{function}"


def test_numbers_of_the_readme_stand_in_the_records() -> None:
    rows = re.findall(r"^\| `benchmarks/(\w+)\.py` \|.*\|([^|]*)\|$", (ROOT / "README.md").read_text("utf-8"), re.M)
    assert rows
    for name, numbers in rows:
        record = (ROOT / "results" / "benchmarks" / f"{name}.txt").read_text(encoding="utf-8")
        found = re.findall(r"\d+\.\d+|\d{2,}", numbers)
        assert found
        assert all(number in record for number in found), f"{name}: {numbers}"


SPEEDS = {
    "ResNet-50": ("resnet50", "torchvision:resnet50"),
    "DeiT-S": ("deit-s", "timm:deit_small_patch16_224"),
    "CIFAR VGG-19": ("cifar", "cifar-vgg19"),
}


def test_the_size_of_an_installation_stands_in_its_record() -> None:
    record = (ROOT / "results" / "benchmarks" / "install.txt").read_text("utf-8")
    text = (ROOT / "README.md").read_text("utf-8")
    sentence = r"torchvision take (\d+) MB and (\d+) s .*? core adds (\d+) MB in (\d+) s, `\[lab\]` (\d+) MB in (\d+) s, `\[all\]` (\d+) MB"
    ((torch, seconds, core, core_seconds, lab, lab_seconds, everything),) = re.findall(sentence, text)
    first = rf"torch \S+ {torch} MB in {seconds} s"
    assert re.search(rf"^rankprune: {first}, then {core} MB in {core_seconds} s;", record, re.M)
    assert re.search(rf"^rankprune\[lab\]: {first}, then {lab} MB in {lab_seconds} s;", record, re.M)
    assert re.search(rf"^rankprune\[all\]: torch \S+ {torch} MB in \d+ s, then {everything} MB ", record, re.M)


def test_speeds_of_the_readme_stand_in_the_records() -> None:
    """Each row of the table of speeds, by medians (by minima), as the record of that network and sparsity has them."""
    text = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\w -]+) \| (\d+) % \|" + 3 * r" ([\d.]+) \(([\d.]+)\) \|", text, re.M)
    assert len(rows) >= 5
    for network, percent, *numbers in rows:
        for engine, (median, minimum) in zip(("deepsparse", "onnxruntime", "torch"), zip(numbers[::2], numbers[1::2])):
            assert timing(*SPEEDS[network], percent, engine)[3:] == (minimum, median), (network, percent, engine)
    (dense,) = re.findall(r"slower here: ([\d.]+) \(([\d.]+)\) of ONNX Runtime", text)
    assert timing("dense", "torchvision:resnet50", "0", "onnxruntime")[3:] == dense[::-1]
    for words, suite, percents in (
        ("One thread", "resnet50-one-thread", (80, 90, 95, 98)), ("16 images at a time", "resnet50-batch", (80, 90, 95, 98)),
        ("A Zen 4 CPU", "resnet50-zen4", (80, 90, 95, 98)), ("A CPU with AVX2 only", "resnet50-avx2", (80, 90, 98)),
    ):  # fmt: skip
        (ratios,) = re.findall(rf"\*\*{words}\*\*.*?((?:[\d.]+, )+[\d.]+ and [\d.]+) times", text)
        wanted = [timing(suite, "torchvision:resnet50", str(percent), "deepsparse")[4] for percent in percents]
        assert re.findall(r"\d\.\d+", ratios) == wanted, words
    (times,) = re.findall(r"takes ([\d.]+) ms in ONNX Runtime .*? takes ([\d.]+) ms at 90 % and ([\d.]+) ms at 95 %", text)
    sparse = [timing("resnet50", "torchvision:resnet50", percent, "rankprune")[1] for percent in ("90", "95")]
    assert list(times) == [timing("dense", "torchvision:resnet50", "0", "onnxruntime-int8")[1], *sparse]
    (latency,) = re.findall(r"ResNet-50 at 98 %: ([\d.]+) ms against ([\d.]+) ms in torch", text)
    assert tuple(timing(*SPEEDS["ResNet-50"], "98", engine)[1] for engine in ("rankprune", "torch")) == latency


def timing(suite: str, model: str, percent: str, engine: str) -> tuple[str, ...]:
    """Minimum and median in ms, images/s, and times faster by minima and medians: a line of what engine.py printed."""
    record = (ROOT / "results" / "benchmarks" / f"engine-{suite}.txt").read_text("utf-8")
    part = record.split(f"{model} at {percent}%")[1]
    found = re.search(rf"^{engine} +(\S+) +(\S+) +(\S+) +(\S+) +(\S+) ", part, re.M)
    assert found
    return found.groups()


TASKS = {("4 epochs", "ResNet-20"): "cifar10-cpu-resnet20", ("4 epochs", "small VGG"): "cifar10-cpu-vgg",
         ("40 epochs", "ResNet-20"): "cifar10-long-resnet20", ("40 epochs", "small VGG"): "cifar10-long-vgg", ("40 epochs", "half-width VGG"): "cifar10-long-vgg-half"}  # fmt: skip


@pytest.mark.parametrize("page", ["README.md", "docs/choose.md"])
def test_accuracies_by_method_stand_in_the_records(page: str) -> None:
    """Every table whose head is a length of training and columns `NET, SPARSITY %`, and the dense accuracies beside it."""
    pytest.importorskip("pydantic", reason="needs rankprune[train]")
    from rankprune.lab.paper.queue import read_queue
    from rankprune.lab.paper.records import Records
    from rankprune.lab.paper.table import Evidence

    records = Records(ROOT / "results" / "records")
    evidence = Evidence(read_queue(ROOT / "results" / "queue.yaml", records), records)
    text = (ROOT / page).read_text("utf-8")
    tables = re.findall(r"^\| (\d+ epochs) \|(.*)\|\n\|[-|]*\|\n((?:\|.*\n)+)", text, re.M)
    assert tables
    for epochs, head, body in tables:
        columns = [column.strip().rsplit(", ", 1) for column in head.split("|")]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
        assert len(rows) >= 5
        for method, *cells in rows:
            for (net, sparsity), cell in zip(columns, cells, strict=True):
                runs = evidence.find(TASKS[epochs, net], method.strip("`"), float(sparsity.rstrip(" %")))
                assert cell == evidence.accuracy(runs), (method, net, sparsity)
    for net, accuracy in re.findall(r"(ResNet-20|small VGG) (\d\d\.\d\d)", text):
        assert accuracy in {evidence.accuracy(evidence.find(TASKS[epochs, net], "dense", None)) for epochs, *_ in tables}
    for net, percent, accuracy, method, dense in re.findall(r"(ResNet-20|small VGG) at ([\d.]+) % sparsity: ([\d.]+) % with (\w+), ([\d.]+) % dense", text):
        assert accuracy == evidence.accuracy(evidence.find(TASKS["4 epochs", net], method.lower(), float(percent)))
        assert dense == evidence.accuracy(evidence.find(TASKS["4 epochs", net], "dense", None))


RESULTS_PAGES = sorted(DOCS.glob("results*.md"))


@pytest.mark.parametrize("page", RESULTS_PAGES, ids=name_of)
def test_what_the_results_say_stands_in_the_tables(page: Path) -> None:
    """Every accuracy in the text of a page of results is in a rendered table or in the record of the finetuned runs."""
    recorded = "".join(path.read_text("utf-8") for path in (ROOT / "results" / "tables").glob("*.md"))
    recorded += (ROOT / "results" / "finetune.txt").read_text("utf-8")
    accuracies = [number for number in re.findall(r"\b\d\d?\.\d\d\b", page.read_text("utf-8")) if not number.startswith("0.")]
    assert len(accuracies) >= (60 if page.stem == "results-short" else 0)
    assert [number for number in accuracies if number not in recorded] == []


def test_the_pages_of_results_show_every_table_and_benchmark() -> None:
    marks = [mark for page in RESULTS_PAGES for mark in re.findall(r"<!-- (\w+): (.*?) -->", page.read_text("utf-8"))]
    shown = {kind: [name for k, names in marks if k == kind for name in names.split()] for kind in ("tables", "benchmarks")}
    recorded = {path.stem for path in (ROOT / "results" / "tables").glob("*.md") if not path.stem.endswith("-full")}
    assert recorded <= set(shown["tables"])
    assert len(shown["tables"]) == len(set(shown["tables"]))
    assert {path.stem.split("-")[0] for path in (ROOT / "results" / "benchmarks").glob("*.txt")} == set(shown["benchmarks"])


def test_the_table_of_choices_says_what_the_methods_say() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(methods/\w+\.md\) \|([^|]*)\|([^|]*)\|", (DOCS / "choose.md").read_text("utf-8"), re.M)
    assert sorted(name for name, *_ in rows) == rp.list_methods()
    for name, needs, cost in rows:
        info = rp.method_info(name)
        assert needs.strip() == (", ".join(sorted(info.needs)) or "-"), name
        assert cost.strip() == info.cost.step, name


@pytest.mark.parametrize("name", rp.list_methods())
def test_the_table_of_choices_says_where_a_method_starts(name: str) -> None:
    said = re.search(rf"^\| \[{name}\]\(.*?\) \|[^|]*\|[^|]*\| ([^|]*) \|", (DOCS / "choose.md").read_text("utf-8"), re.M)
    assert said
    model = cnn()
    sources = {"data": [batch(1)], "loss_fn": torch.nn.functional.cross_entropy} if "data" in rp.method_info(name).needs else {}
    sp = rp.attach(model, sgd(model), name, sparsity=0.9, total_steps=1000, **sources)
    assert said[1] == ("as it is" if name == "static" else "sparse" if sp.sparsity > 0.5 else "dense")


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocstrings", reason="needs rankprune[docs]")
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")  # the theme's own news
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe)[^>]+src=\"?([^\"\s>]+)", page.read_text(encoding="utf-8"))
        loaded += re.findall(r"<link[^>]+rel=\"?(?:stylesheet|preload|preconnect|icon)[^>]+href=\"?([^\"\s>]+)", page.read_text("utf-8"))
        assert not [target for target in loaded if target.startswith(("http", "//"))], page


def test_the_architecture_names_every_room() -> None:
    table = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = [p for p in (ROOT / "src" / "rankprune").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    missing = {f"{p.name}/" if p.is_dir() else p.name for p in rooms} - set(re.findall(r"`([\w.]+/?)`", table))
    assert missing <= {"__init__.py", "__main__.py"}
