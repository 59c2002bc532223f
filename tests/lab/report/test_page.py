"""The file itself: what is in it, what cannot get out of it."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankprune.cli import main
from rankprune.lab.report.page import embed, render

VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))


@given(VALUES)
def test_embedded_text_is_the_same_and_ends_no_element(value: Any) -> None:
    text = embed(value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_no_address_is_asked_for(data: dict[str, Any]) -> None:
    elements = Elements()
    elements.feed(render(data))
    links = [value for _, attributes in elements.found for key, value in attributes.items() if key in ("src", "href") and value]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    (policy,) = [a["content"] for tag, a in elements.found if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("style-src")[0]


def test_only_the_live_page_may_reach_its_server(data: dict[str, Any]) -> None:
    assert "connect-src 'self'" in render(data, live=True)


def test_marks_in_a_name_stay_text(data: dict[str, Any]) -> None:
    named = {**data, "runs": [{**data["runs"][0], "name": "{{scripts}} </script><script>"}]}
    page = render(named)
    assert "{{scripts}} \\u003c/script" in page
    held = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert held is not None
    assert json.loads(held.group(1))["runs"][0]["name"] == "{{scripts}} </script><script>"


def test_the_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.html"
    assert main(["report", str(runs), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "bytes": out.stat().st_size, "runs": 3}
    held = re.search(r'id="data">(.*?)</script>', out.read_text(), re.DOTALL)
    assert held is not None
    shown = {run["id"]: run["result"]["accuracy_last"] for run in json.loads(held.group(1))["runs"]}
    assert shown == {folder.name: json.loads((folder / "result.json").read_text())["accuracy_last"] for folder in runs.iterdir()}


def test_a_folder_without_runs_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"rankprune: {tmp_path} holds no run: give a run folder, which has a recipe.yaml, or a folder of run folders.\n"


def test_a_page_that_cannot_be_written_is_one_sentence(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(next(runs.iterdir())), "--out", str(tmp_path / "no" / "r.html")]) != 0
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)  # before anything is read
    assert err.startswith(f"rankprune: --out {tmp_path / 'no' / 'r.html'} is in a folder that does not exist: create ")


@pytest.mark.long
def test_the_engine_is_timed_when_asked(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("rankprune.engine.compile")
    out = tmp_path / "r.html"
    assert main(["report", str(next(runs.glob("*-rpg-*"))), "--out", str(out), "--engine"]) == 0
    held = re.search(r'id="data">(.*?)</script>', out.read_text(), re.DOTALL)
    assert held is not None
    engine = json.loads(held.group(1))["runs"][0]["engine"]
    assert engine["engine_ms"] > 0
    weighted = [layer for layer in engine["layers"] if layer["kept"]]
    assert len(weighted) == 9
    assert all(layer["ms"] > 0 for layer in weighted)
    assert all(layer["kernel"] for layer in weighted if layer["name"].startswith("features"))  # a linear layer has but one
