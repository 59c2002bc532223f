"""The example on each method's page runs and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "methods").glob("*.md"))
EXAMPLE = re.compile(r"```python\n(.*?)```\n+```text\n(.*?)```", re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_example(page: Path) -> None:
    examples = EXAMPLE.findall(page.read_text(encoding="utf-8"))
    if not examples:
        pytest.skip("no example with its output on this page")
    for code, printed in examples:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(page), "exec"), {"__name__": "__page__"})
        assert out.getvalue() == printed
