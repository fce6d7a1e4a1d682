"""The folder of an artifact that no process can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from example_manifest import make_manifest

from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS, file_digest
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
