"""A file is replaced whole, and is as readable as any other file of its owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rankprune._atomic import write_atomic


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("umask", "wanted"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_new_file_follows_the_umask(umask: int, wanted: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_atomic(tmp_path / "new", b"x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == wanted


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomic(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o640)


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomic(tmp_path / "folder", b"x")  # a folder cannot be replaced by a file
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
