from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from interrupted_lines import interrupted_at_each_line

from veltair.machine.whole_file import whole_file

FULL = """
import resource, signal, sys
from pathlib import Path
from veltair.machine.whole_file import whole_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with whole_file(Path(sys.argv[1])) as file:
    file.write(bytes(100_000))
"""


@pytest.mark.parametrize("before", ["", "old"])
def test_a_signal_at_any_moment_leaves_the_old_one_or_the_new_one(tmp_path: Path, before: str) -> None:
    path = tmp_path / "file"

    def write() -> None:
        with whole_file(path) as file:
            file.write(b"new")

    seen = set[str]()
    path.write_text(before)
    for step in interrupted_at_each_line(write, "whole_file.py"):
        assert [each.name for each in tmp_path.iterdir()] == ["file"], step
        seen.add(path.read_text())
        path.write_text(before)
    assert seen == {before, "new"}


def test_what_does_not_fit_on_the_disk_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    ended = subprocess.run([sys.executable, "-c", FULL, tmp_path / "file"], capture_output=True, text=True, check=False)
    assert "File too large" in ended.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"


def test_a_new_one_replaces_none(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(tmp_path / "absent")
    with whole_file(path, new=True) as file:
        file.write(b"first")
    for taken in (path, link):
        with pytest.raises(FileExistsError), whole_file(taken, new=True):
            pytest.fail("not reached")
    with pytest.raises(IsADirectoryError), whole_file(tmp_path):
        pytest.fail("not reached")
    assert path.read_text() == "first" and link.is_symlink()


def test_a_new_one_replaces_none_that_comes_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileExistsError), whole_file(path, new=True) as file:
        file.write(b"late")
        path.write_bytes(b"meanwhile")
    assert path.read_text() == "meanwhile" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mode", "expected"), [(0o666, 0o640), (0o600, 0o600)])
def test_permissions_are_those_that_the_umask_leaves(tmp_path: Path, mode: int, expected: int) -> None:
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "file", mode=mode):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == expected
