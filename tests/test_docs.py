"""Every Python block of the methods' pages runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankprune as rp

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted((DOCS / "methods").glob("*.md"))


def test_every_method_has_a_page() -> None:
    assert {page.stem for page in PAGES} >= set(rp.list_methods())
    listed = (DOCS / "methods" / "README.md").read_text()
    assert all(f"({name}.md)" in listed for name in rp.list_methods())
    assert all(f"`{name}`" in listed for name in rp.extras.list_extras())


# Pages that show what their example prints are compared with it in tests/methods/test_pages.py.
SILENT = [page for page in PAGES if "```python" in page.read_text() and "```text" not in page.read_text()]


@pytest.mark.long
@pytest.mark.parametrize("page", SILENT, ids=lambda page: page.stem)
def test_the_examples_run(page: Path, tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
