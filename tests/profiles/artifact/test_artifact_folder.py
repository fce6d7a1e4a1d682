"""An artifact whose manifest points outside of its memory is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_artifact import written

from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import MANIFEST, load_artifact


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
