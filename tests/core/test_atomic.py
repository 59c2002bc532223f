"""A file is replaced whole, and is as readable as any other file of its owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rankprune._util import write_atomic


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


def test_the_old_file_stays_until_the_new_one_is_there(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"old")
    with pytest.raises(TypeError):
        write_atomic(tmp_path / "file", "not bytes")  # type: ignore[arg-type]
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_no_folder_and_no_file_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent to write file into"):
        write_atomic(tmp_path / "absent" / "file", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder: give the name of a file"):
        write_atomic(tmp_path / "folder", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
