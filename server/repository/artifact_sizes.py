"""What an artifact takes in memory, by the sizes of its files."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from veltair.errors import ArtifactError
from veltair.machine.regular_file import read_regular_file
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, MOST_MANIFEST_BYTES, WEIGHTS, decode_manifest
from veltair.profiles.artifact.manifest import Manifest
from veltair.profiles.artifact.sealed_artifact import SealedFiles
from veltair.server.ipc.tensor_pool import lay_out_region


@dataclass(frozen=True, slots=True)
class SealedBytes:
    """The sizes of an artifact's files: `SealedBytes(weights=102_000_000, code=3_000_000)`."""

    weights: int
    code: int  # of the library and the manifest

    @property
    def total(self) -> int:
        return self.weights + self.code


@dataclass(frozen=True, slots=True)
class FoundArtifact:
    """An artifact whose content nobody has checked: `look_at(Path("models/resnet50")).sealed.weights`."""

    manifest: Manifest
    digest: str
    sealed: SealedBytes


def look_at(path: Path) -> FoundArtifact:
    """What lies in a folder; only the manifest is read. Raises ArtifactError."""
    try:
        raw = read_regular_file(path / MANIFEST, MOST_MANIFEST_BYTES)
        weights, kernels = ((path / name).stat().st_size for name in (WEIGHTS, KERNELS))
    except OSError as error:
        raise ArtifactError(f"{path}: no model artifact there ({error.strerror})") from None
    sealed = SealedBytes(weights, kernels + len(raw))
    return FoundArtifact(decode_manifest(raw, path), hashlib.sha256(raw).hexdigest(), sealed)


def sealed_bytes(files: SealedFiles) -> SealedBytes:
    sizes = {name: os.fstat(descriptor).st_size for name, descriptor in files._asdict().items()}
    return SealedBytes(sizes["weights"], sizes["kernels"] + sizes["manifest"])


def buffer_bytes(manifest: Manifest, *, batching: bool) -> int:
    """What a worker has to gather batches in, beside the arena."""
    if not batching or manifest.max_batch == 1:
        return 0
    return sum(lay_out_region(bucket, 0).slot_bytes for bucket in manifest.every_bucket)
