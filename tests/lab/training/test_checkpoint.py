"""Checkpoints: whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankprune.lab.training import RunError, checkpoint

STATE = {"weights": torch.arange(50.0), "step": 7, "nested": {"a": [1, 2.5, None, "x"]}}


def test_what_is_written_is_read_and_torch_reads_it_too(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    checkpoint.write(path, STATE)
    for state in (checkpoint.read(path), torch.load(path, weights_only=True)):
        assert torch.equal(state["weights"], STATE["weights"])
        assert state["nested"] == STATE["nested"]
    assert [file.name for file in tmp_path.iterdir()] == ["a.ckpt"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_or_cut_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.ckpt"
    checkpoint.write(path, STATE)
    raw = bytearray(path.read_bytes())
    where = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[where] ^= data.draw(st.integers(1, 255))
    else:
        del raw[where:]
    path.write_bytes(raw)
    with pytest.raises(ValueError, match="damaged"):
        checkpoint.read(path)


def test_the_last_two_are_kept_and_the_older_one_stands_in(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, {"step": step})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]
    assert checkpoint.load(tmp_path) == ({"step": 3}, "")
    (tmp_path / "last.ckpt").write_bytes(b"nonsense")
    state, problem = checkpoint.load(tmp_path)
    assert state == {"step": 2}
    assert "last.ckpt is damaged" in problem
    assert "previous.ckpt" in problem
    (tmp_path / "previous.ckpt").unlink()
    with pytest.raises(RunError, match="start over"):
        checkpoint.load(tmp_path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    checkpoint.write(path, {"object": Path("x")})
    with pytest.raises(ValueError, match="cannot be read"):
        checkpoint.read(path)
