"""Joins artifacts of one model at several extents of a dimension into one: one library, and every weight once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from veltair.compiler.shared_library import link_library
from veltair.compiler.weight_file import WeightFile
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS, Artifact, file_digest
from veltair.profiles.artifact.dynamic_dimension import DynamicDimension
from veltair.profiles.artifact.manifest import Buffer, Manifest


class JoinedBuckets:
    """The artifact while it is written; a context manager.

    ::

        with JoinedBuckets(draft, dimension) as joined:
            for artifact, objects in compiled:  # the largest extent first
                joined.add(artifact, objects)
    """

    def __init__(self, folder: Path, dimension: DynamicDimension) -> None:
        self._folder, self._dimension = folder, dimension
        self._weights = WeightFile(folder / WEIGHTS)
        self._manifests: list[Manifest] = []
        self._objects: dict[Path, None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._weights:  # closes the file
            pass
        if error is None:
            self._finish()

    def add(self, artifact: Artifact, objects: Sequence[Path]) -> None:
        """Take over what an artifact holds. `objects`: the files that its kernels were linked from, which stay."""
        content = (
            np.memmap(artifact.weights, np.uint8, "r") if artifact.weights.stat().st_size else np.empty(0, np.uint8)
        )

        def moved(buffer: Buffer) -> Buffer:
            if buffer.kind != "weight":
                return buffer
            rows = np.asarray(content[buffer.offset : buffer.offset + buffer.bytes_at(1)])
            return msgspec.structs.replace(buffer, offset=self._weights.add(rows))

        manifest = artifact.manifest
        self._manifests.append(msgspec.structs.replace(manifest, buffers=tuple(map(moved, manifest.buffers))))
        self._objects |= dict.fromkeys(objects)

    def _finish(self) -> None:
        link_library(self._objects, self._folder / KERNELS)
        digests = {
            "kernels_digest": file_digest(self._folder / KERNELS),
            "weights_digest": file_digest(self._folder / WEIGHTS),
        }
        whole, *smaller = (msgspec.structs.replace(manifest, **digests) for manifest in self._manifests)
        whole = msgspec.structs.replace(whole, dimension=self._dimension, buckets=tuple(smaller))
        (self._folder / MANIFEST).write_bytes(msgspec.json.encode(whole))
