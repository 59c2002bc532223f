"""Records are written once, found by what was run, and refused off their target."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from _small import add

from rankprune.lab.errors import OffTarget, RunError
from rankprune.lab.paper.records import Records, code_version
from rankprune.lab.paper.runs import Run
from rankprune.lab.runs.sealed_json import seal

RUN = Run("fashion", "gmp", 95.0)


def test_written_once_and_found_again(tmp_path: Path) -> None:
    records = Records(tmp_path)
    add(records, RUN, 0.8)
    (path,) = tmp_path.glob("*.json")
    before = path.read_bytes()
    with pytest.raises(RunError, match="records are never changed"):
        add(records, RUN, 0.9)
    assert path.read_bytes() == before
    found = Records(tmp_path).newest(RUN.key())
    assert found is not None
    assert found["result"]["accuracy_last"] == 0.8


def test_other_code_makes_another_record(tmp_path: Path) -> None:
    records = Records(tmp_path)
    add(records, RUN, 0.8, code="0.1.0-a")
    assert records.has(RUN.key())
    assert not records.has(RUN.key(), code="0.1.0-b")
    add(records, RUN, 0.7, code="0.1.0-b")
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_the_key_is_of_what_is_run() -> None:
    assert RUN.key() == Run("fashion", "gmp", 95.0).key()
    others = [
        Run("fashion", "gmp", 95.0, seed=1), Run("fashion", "gmp", 98.0), Run("fashion", "rigl", 95.0),
        Run("fashion", "gmp", 95.0, (("method.every", 7),)), Run("fashion", "gmp", 95.0, budget=("epochs=2",)),
        Run("fashion", "gmp", 95.0, pretrained=True), Run("fashion", "gmp", 95.0, smoke=True),
    ]  # fmt: skip
    assert len({run.key() for run in [RUN, *others]}) == 1 + len(others)
    # A setting that says what the recipe says already is the same run; so is one with its data elsewhere.
    assert Run("fashion", "gmp", 95.0, (("method.every", 5),)).key() == RUN.key()
    assert Run("fashion", "gmp", 95.0, budget=("data.root=/elsewhere",)).key() == RUN.key()


def test_an_accuracy_off_its_target_is_refused(tmp_path: Path) -> None:
    records = Records(tmp_path)
    with pytest.raises(OffTarget, match=r"keeps 501 of 10,000 weights and not the 500 of 95.00 %: its accuracy is refused"):
        add(records, RUN, 0.8, kept=501)
    assert list(tmp_path.iterdir()) == []
    add(records, RUN, 0.8)
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    record["result"]["kept"] = 499
    path.write_text(json.dumps(record))
    with pytest.raises(RunError, match="it was changed after it was written: the checksum differs"):
        Records(tmp_path)
    path.write_text(json.dumps(seal(record)))
    with pytest.raises(OffTarget):
        Records(tmp_path)


def test_a_record_of_before_checksums_is_read(tmp_path: Path) -> None:
    add(Records(tmp_path), RUN, 0.8)
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert list(record)[-1] == "checksum"
    del record["checksum"]
    path.write_text(json.dumps(record))
    found = Records(tmp_path).newest(RUN.key())
    assert found == record


@pytest.mark.parametrize("change", ["accuracy", "seed", "a key more", "cut"])
def test_a_changed_record_is_a_sentence(change: str, tmp_path: Path) -> None:
    add(Records(tmp_path), RUN, 0.8)
    (path,) = tmp_path.glob("*.json")
    text = path.read_text()
    changed = {
        "accuracy": text.replace('"accuracy_last": 0.8', '"accuracy_last": 0.9'),
        "seed": text.replace('"seed": 0', '"seed": 1', 1),
        "a key more": text.replace("{", '{"more": 1, ', 1),
        "cut": text[: len(text) // 2],
    }[change]
    assert changed != text
    path.write_text(changed)
    with pytest.raises(RunError, match=r"is not a record of a run \(.*\): restore it from version control"):
        Records(tmp_path)


@pytest.mark.parametrize("key", ["kept", "prunable", "target_sparsity"])
def test_an_incomplete_result_is_named(key: str, tmp_path: Path) -> None:
    add(Records(tmp_path), RUN, 0.8)
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    del record["result"][key]
    path.write_text(json.dumps(seal(record)))
    with pytest.raises(RunError, match=f"not a record of a run .it lacks '{key}'"):
        Records(tmp_path)


def test_the_records_of_this_project_are_whole() -> None:
    """Those that have a checksum are as they were written; all have what the tables need."""
    folder = Path(__file__).resolve().parents[3] / "results" / "records"
    if not folder.is_dir():
        pytest.skip("the results are not part of an installed package")
    assert len(list(Records(folder))) == len(list(folder.glob("*.json"))) > 0


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"run": "x"}'])
def test_a_damaged_record_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RunError, match=r"a.json is not a record of a run"):
        Records(tmp_path)


def test_the_code_has_a_version_and_a_digest() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+-[0-9a-f]{8}", code_version())
