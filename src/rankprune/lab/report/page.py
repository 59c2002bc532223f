"""One HTML file that contains everything it needs: data, style, scripts and the plotting library."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rankprune._util import need, write_atomic
from rankprune.lab.runs.run_folder import writing

# Each script may use those before it.
SCRIPTS = (
    "text.js", "theme.js", "table.js", "chart.js", "series.js", "training.js", "layers.js", "overview.js", "app.js",
)  # fmt: skip


def render(data: dict[str, Any], live: bool = False) -> str:
    """Render the page.

    Args:
        data: What `Collector.collect` returned.
        live: Let the page listen to updates of the server it came from.

    Returns:
        HTML.
    """
    scripts = [_library(), _scripts()]
    page = _asset("page.html")
    for mark, text in (
        ("{{policy}}", policy(scripts, live)),
        ("{{style}}", _asset("style.css")),
        ("{{live}}", "yes" if live else "no"),
        ("{{library}}", scripts[0]),
        ("{{scripts}}", scripts[1]),
        ("{{data}}", embed(data)),  # last, so that placeholders in a recipe's text are not replaced
    ):
        page = page.replace(mark, text, 1)
    return page


def write_page(data: dict[str, Any], path: Path) -> int:
    """Write the page to a file.

    Args:
        data: What `Collector.collect` returned.
        path: The file.

    Returns:
        Size of the file in bytes.

    Raises:
        RunError: The file cannot be written.
    """
    raw = render(data).encode()
    with writing(path):
        write_atomic(path, raw)
    return len(raw)


def embed(data: Any) -> str:
    """Encode data as JSON that cannot close the script element around it, whatever text it contains.

    Args:
        data: Plain values.

    Returns:
        JSON without <, > and &.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(scripts: Sequence[str], live: bool) -> str:
    """Return the page's Content-Security-Policy: only its own scripts, by their hashes, and no connections elsewhere.

    Args:
        scripts: The texts of the scripts.
        live: Allow connections to the server that the page came from.

    Returns:
        The policy.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    reach = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {reach}; base-uri 'none'; form-action 'none'"
    )


@lru_cache
def _library() -> str:
    text: str = need("plotly.offline", "report", "A report").get_plotlyjs()
    return text


@lru_cache
def _scripts() -> str:
    return "'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS)


def _asset(name: str) -> str:
    return (files("rankprune.lab.report") / "assets" / name).read_text(encoding="utf-8")
