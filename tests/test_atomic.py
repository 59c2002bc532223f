"""Files appear whole, under the mode any other new file of the user's would have."""

from __future__ import annotations

import os
import stat

import pytest

from rankprune._atomic import write_atomic


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_others_may_read_it_if_the_user_lets_them(tmp_path):
    for mask, mode in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            write_atomic(tmp_path / f"{mask}", b"x")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / f"{mask}").stat().st_mode) == mode


def test_the_old_file_stays_until_the_new_one_is_there(tmp_path):
    write_atomic(tmp_path / "file", b"old")
    with pytest.raises(TypeError):
        write_atomic(tmp_path / "file", "not bytes")  # type: ignore[arg-type]
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]
    write_atomic(tmp_path / "file", b"new")
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"new"]


def test_no_folder_and_no_file_are_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent to write file into"):
        write_atomic(tmp_path / "absent" / "file", b"")
    with pytest.raises(IsADirectoryError, match="is a folder: give the name of a file"):
        write_atomic(tmp_path, b"")
