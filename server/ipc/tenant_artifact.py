"""Opens the artifact that a `TenantSpec` names; engine and workers each do so when they start."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import MANIFEST, Artifact
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.ipc.messages import TenantSpec


def open_artifact(spec: TenantSpec) -> Artifact:
    """Raises ArtifactError where the artifact is missing or has been replaced."""
    return open_artifact_folder(Path(spec.artifact), spec.digest)


def open_artifact_folder(path: Path, digest: str) -> Artifact:
    """Only the manifest is compared with the digest: the artifact loader has checked the big files already.

    Raises ArtifactError where the artifact is missing or has been replaced.
    """
    try:
        raw = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror}") from None
    if hashlib.sha256(raw).hexdigest() != digest:
        raise ArtifactError(f"{path}: replaced since it was checked; load it again to serve the new one")
    return Artifact(path, msgspec.json.decode(raw, type=Manifest), digest)
