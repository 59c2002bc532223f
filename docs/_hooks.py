"""mkdocs: the pages of results show the records in results/ (tables, figures, benchmarks) and no other numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
# Table: what its figure shows. The figure has the table's name.
DRAWN = {
    "cifar10": "Accuracy against the share of weights kept, one curve per method",
    "flops": "Accuracy against the MACs of one image",
    "lambda": "Accuracy and rank against λ",
    "long": "Accuracy, rank and survival of grown weights against the strength of the rank term",
    "long-quarter": "The same for the small VGG at a quarter of the length",
    "rank": "Average rank against the share of weights kept",
}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    from mkdocs.structure.files import File

    for path in sorted((RESULTS / "figures").glob("*.svg")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in the marks `<!-- KIND: NAME … -->`: tables, figures, benchmarks and records."""
    fill = {"tables": tables, "figures": figures, "benchmarks": benchmarks, "record": record}
    marks = re.compile(rf"<!-- ({'|'.join(fill)}): ([^>]*?) -->")
    return marks.sub(lambda mark: fill[mark[1]](mark[2].split(), RESULTS), markdown)


def tables(names: list[str], results: Path = RESULTS) -> str:
    """Rendered tables, their headings one level down, each with its figure after the title."""
    found = []
    for name in names:
        path = results / "tables" / f"{name}.md"
        if not path.is_file():
            continue
        text = re.sub(r"^(#+) ", r"#\1 ", path.read_text(encoding="utf-8"), flags=re.M)
        if name in DRAWN and (results / "figures" / f"{name}.svg").is_file():
            title, rest = text.split("\n", 1)
            text = f"{title}\n\n{figures([name], results)}\n{rest}"
        found.append(text)
    return "\n\n".join(found) or "No table has been recorded yet."


def figures(names: list[str], results: Path = RESULTS) -> str:
    """Figures that belong to no table, or to the one above them."""
    return "\n\n".join(f"![{DRAWN[n]}](figures/{n}.svg)" for n in names if (results / "figures" / f"{n}.svg").is_file())


def benchmarks(scripts: list[str], results: Path = RESULTS) -> str:
    """What each benchmark printed, as it printed it."""
    found = []
    for script in scripts:
        paths = [*(results / "benchmarks").glob(f"{script}.txt"), *(results / "benchmarks").glob(f"{script}-*.txt")]
        for path in sorted(paths):  # engine-cifar.txt is what `engine.py cifar` printed
            suite = path.stem.removeprefix(script).replace("-", " ", 1)
            found.append(f"### `benchmarks/{script}.py{suite}`\n\n```text\n{path.read_text(encoding='utf-8')}```")
    return "\n\n".join(found) or "No benchmark has been recorded yet."


def record(names: list[str], results: Path = RESULTS) -> str:
    """A file of results/ as it is."""
    return "\n\n".join(f"```text\n{(results / name).read_text(encoding='utf-8')}```" for name in names)
