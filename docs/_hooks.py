"""mkdocs: the page of results shows the tables and benchmark records that stand in results/, and no other numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri != "results.md":
        return markdown
    finetune = f"```text\n{(RESULTS / 'finetune.txt').read_text(encoding='utf-8')}```"
    for mark, text in {"tables": tables(), "finetune": finetune, "benchmarks": benchmarks()}.items():
        markdown = markdown.replace(f"<!-- {mark} -->", text)
    return markdown


def tables(folder: Path = RESULTS / "tables") -> str:
    """Every rendered table, its headings two levels down."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))]
    found = [re.sub(r"^(#+) ", r"##\1 ", text, flags=re.M) for text in texts]
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
