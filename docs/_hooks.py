"""mkdocs: the page of results shows what stands in results/ (tables, figures, benchmarks) and no other numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
# Table: what its figure shows. The figure has the table's name.
DRAWN = {
    "cifar10": "Accuracy against the weights that are kept, a curve a method",
    "flops": "Accuracy against the MACs of one image",
    "lambda": "Accuracy and rank against λ",
    "rank": "Average rank against the weights that are kept",
}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    from mkdocs.structure.files import File

    for path in sorted((RESULTS / "figures").glob("*.svg")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri != "results.md":
        return markdown
    finetune = f"```text\n{(RESULTS / 'finetune.txt').read_text(encoding='utf-8')}```"
    for mark, text in {"tables": tables(), "finetune": finetune, "benchmarks": benchmarks()}.items():
        markdown = markdown.replace(f"<!-- {mark} -->", text)
    return markdown


def tables(results: Path = RESULTS) -> str:
    """Every rendered table, its headings two levels down, its figure after its title."""
    found = []
    for path in sorted((results / "tables").glob("*.md")):
        text = re.sub(r"^(#+) ", r"##\1 ", path.read_text(encoding="utf-8"), flags=re.M)
        if path.stem in DRAWN and (results / "figures" / f"{path.stem}.svg").is_file():
            title, rest = text.split("\n", 1)
            text = f"{title}\n\n![{DRAWN[path.stem]}](figures/{path.stem}.svg)\n{rest}"
        found.append(text)
    return "\n\n".join(found) or "No table has been recorded yet: not measured."


def benchmarks(folder: Path = RESULTS / "benchmarks") -> str:
    """What each benchmark printed, as it printed it."""
    records = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))}
    found = []
    for name, text in records.items():
        script, _, suite = name.partition("-")  # engine-cifar is what `engine.py cifar` printed
        command = f"benchmarks/{script}.py {suite}".rstrip()
        found.append(f"### `{command}`\n\n```text\n{text}```")
    return "\n\n".join(found) or "No benchmark has been recorded yet: not measured."
