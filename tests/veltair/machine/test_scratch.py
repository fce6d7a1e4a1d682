from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from interrupted_lines import interrupted_at_each_line

from veltair.machine.scratch import PREFIX, ScratchFolder

HOLD = """
import sys
from veltair.machine.scratch import ScratchFolder
with ScratchFolder("held") as folder:
    (folder / "large").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_process_leaves_is_removed_by_the_next(parent: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        with ScratchFolder("other"):
            assert (held / "large").read_bytes() == b"x"  # it is still used
        holder.send_signal(signal.SIGKILL)
    assert held.is_dir()
    with ScratchFolder("next") as own:
        assert list(parent.iterdir()) == [own]
    assert not list(parent.iterdir())


def test_a_folder_is_this_users_alone_and_goes_with_its_object(parent: Path) -> None:
    folder = ScratchFolder("mine")
    assert folder.path.name.startswith(f"{PREFIX}mine-")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    del folder
    assert not list(parent.iterdir())


def test_a_signal_at_any_moment_leaves_nothing(parent: Path) -> None:
    """A signal's exception comes out of whichever line runs."""

    def held() -> None:
        with ScratchFolder("held") as folder:
            (folder / "large").write_bytes(b"x")

    steps = 0
    for step in interrupted_at_each_line(held, "scratch.py"):
        assert not list(parent.iterdir()), step
        steps += 1
    assert steps > 20


def test_a_signal_while_it_is_removed_leaves_nothing(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, calls = shutil.rmtree, list[Any]()

    def interrupted(*args: Any, **options: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise SystemExit(143)
        remove(*args, **options)

    folder = ScratchFolder("held")
    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(SystemExit, match="143"), folder:
        pass
    assert not list(parent.iterdir()) and len(calls) == 2


def test_links_files_and_other_folders_are_left_alone(parent: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    kept = tmp_path_factory.mktemp("kept")
    (kept / "file").touch()
    (parent / f"{PREFIX}link").symlink_to(kept)
    (parent / f"{PREFIX}file").touch()
    (parent / "veltair-another").mkdir()
    with ScratchFolder("next"):
        pass
    assert sorted(each.name for each in parent.iterdir()) == ["veltair-another", f"{PREFIX}file", f"{PREFIX}link"]
    assert (kept / "file").exists()
