"""An artifact whose manifest points outside of its memory is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_manifest import make_manifest

from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS, file_digest, load_artifact
from veltair.profiles.artifact.manifest import Buffer, LayerEntry, Port, VersionEntry


def written(folder: Path) -> dict[str, Any]:
    """A consistent artifact of one layer, and its manifest as plain values."""
    (folder / WEIGHTS).write_bytes(bytes(128))
    (folder / KERNELS).write_bytes(b"code")
    version = VersionEntry("f", (0, 1, 2, 3), 1, 1, {}, (((1,),), ((2,),)))
    manifest = make_manifest(
        max_batch=2,
        batches=(1, 2),
        inputs=(Port("x", "float32", (-1, 3)),),
        outputs=(Port("y", "float32", (-1, 4)),),
        buffers=(
            Buffer("input", "float32", (-1, 3), 0),
            Buffer("weight", "float32", (4, 8), 0),
            Buffer("arena", "float32", (-2, 16), 0),
            Buffer("output", "float32", (-2, 2), 0),  # a view of it
        ),
        arena_bytes=256,
        layers=(LayerEntry("l", "op", (0,), (3,), (1, 2), (1, 2), (version,)),),
        kernels_digest=file_digest(folder / KERNELS),
        weights_digest=file_digest(folder / WEIGHTS),
    )
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest))
    (folder / MANIFEST).write_bytes(msgspec.json.encode(plain))
    return plain


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
