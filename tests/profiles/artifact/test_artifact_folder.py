"""An artifact whose manifest points outside of its memory is refused; who may read one is the umask's matter."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_artifact import written
from interrupted_lines import interrupted_at_each_line

from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS, load_artifact, write_artifact


def test_a_consistent_one_is_read(tmp_path: Path) -> None:
    written(tmp_path)
    assert load_artifact(tmp_path).manifest.buffers[3].at(2) == (4, 2)


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda b: b[3].update(offset=1), "buffer 3 .output. ends at 2, past 1"),
        (lambda b: b[3].update(offset=64), "buffer 3 .output. ends at 65, past 1"),
        (lambda b: b[3].update(shape=[-1, 5]), "buffer 3 is float32 .-1, 5., output y float32 .-1, 4."),
        (lambda b: b[3].update(shape=[1, 4]), "buffer 3 is float32 .1, 4., output y"),  # right at batch 1 alone
        (lambda b: b[0].update(dtype="int64"), "buffer 0 is int64 .-1, 3., input x float32"),
        (lambda b: b[0].update(dtype="complex"), "unknown dtype complex; expected one of bool"),
        (lambda b: b[1].update(shape=[5, 8]), "buffer 1 .weight. ends at 160, past 128"),
        (lambda b: b[2].update(offset=64), "buffer 2 .arena. ends at 320, past 256"),
    ],
)
def test_tensors_outside_of_their_memory(tmp_path: Path, alter: Callable[[Any], None], says: str) -> None:
    plain = written(tmp_path)
    alter(plain["buffers"])
    (tmp_path / MANIFEST).write_bytes(msgspec.json.encode(plain))
    with pytest.raises(ArtifactError, match=says):
        load_artifact(tmp_path)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o027, 0o750), (0o077, 0o700)])
def test_a_folder_is_open_to_whom_the_umask_says(tmp_path: Path, umask: int, mode: int) -> None:
    """One that root compiled is served by a user of the daemon's own."""
    before = os.umask(umask)
    try:
        for _ in range(2):  # a new one, and one that replaces another
            with write_artifact(tmp_path / "model") as draft:
                for name in (MANIFEST, WEIGHTS, KERNELS):
                    (draft / name).touch()
            assert (tmp_path / "model").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("before", ["", "old"])
def test_a_signal_at_any_moment_leaves_one_artifact_or_none(tmp_path: Path, before: str) -> None:
    """And nothing beside it: the one that was there, or the new one, whole."""
    final = tmp_path / "model"

    def write(text: str) -> None:
        with write_artifact(final) as draft:
            for name in (MANIFEST, WEIGHTS, KERNELS):
                (draft / name).write_text(text)

    if before:
        write(before)
    seen = set[str]()
    for step in interrupted_at_each_line(lambda: write("new"), "artifact_folder.py"):
        found = {each.read_text() for each in final.iterdir()} if final.exists() else {""}
        assert len(found) == 1 and not set(tmp_path.iterdir()) - {final}, step
        assert found <= {before, "new"}, step
        seen |= found
        if before:
            write(before)
        else:
            shutil.rmtree(final, ignore_errors=True)
    assert seen == {before, "new"}
