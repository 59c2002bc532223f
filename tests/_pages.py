"""Runs the code blocks of a page, in order, in one folder.

```python runs, and all such blocks of a page share their names; ```sh runs in bash. A block with title="FILE" is
written to that file instead. A ```text block right after a ```python block is what that one prints. Any other block is
not run: tests/test_docs.py lists each of them with the reason. Python in a comment `<!-- before: … -->` runs too: it
stands for what the reader brings.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import NamedTuple

LANGUAGES = {"python", "sh", "text", "yaml", "toml", "bibtex", "cpp"}
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```[ ]*$|<!-- before:\n(.*?)-->", re.M | re.S)


class Block(NamedTuple):
    language: str
    title: str
    code: str
    printed: str | None  # what the page says a Python block prints


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    end = -1
    for match in _FENCE.finditer(text):
        info, code = (match[1], match[2]) if match[3] is None else ("python", match[3])
        title = re.search(r'title="([^"]+)"', info)
        block = Block(info.split()[0] if info.strip() else "", title[1] if title else "", code, None)
        if block.language == "text" and found and found[-1].language == "python" and not text[end : match.start()].strip():
            found[-1] = found[-1]._replace(printed=code)
        else:
            found.append(block)
        end = match.end()
    return found


def run(page: Path) -> None:
    """Run the page's blocks here; raises where one fails or prints something else."""
    module = sys.modules["__page__"] = types.ModuleType("__page__")  # dataclasses look their module up
    module.__file__ = str(page.resolve())
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.title:
            Path(block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block.code, str(page), "exec", dont_inherit=True), module.__dict__)
            if block.printed is not None and out.getvalue() != block.printed:
                raise AssertionError(f"{page.name} says\n{block.printed}\nand it printed\n{out.getvalue()}")
        elif block.language == "sh":
            commands = {"rankprune": "rankprune", "torchrun": "torch.distributed.run"}  # those of this Python
            shell = "\n".join(f'{name}() {{ "{sys.executable}" -m {module} "$@"; }}' for name, module in commands.items())
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", f"{shell}\n{block.code}"], capture_output=True, text=True, check=False)
            if done.returncode:
                raise AssertionError(f"{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    os.environ.setdefault("RANKPRUNE_CACHE", str(Path.cwd() / "cache"))
    run(Path(sys.argv[1]))
