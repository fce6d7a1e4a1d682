"""The folder of a model artifact: reading it, checking it, and writing it as a whole.

An artifact is a folder with these files, each covered by the digest:

    manifest.json   `Manifest`
    weights.bin     every constant in the layout that its kernels want, 64-byte aligned; mapped as it is
    kernels.so      every code version of every layer as a symbol of its own
    columns.toml    the feature columns, where the model has some (docs/features.md)

It is written beside its final name and renamed, so that a reader finds all of it or nothing.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from veltair.errors import ArtifactError
from veltair.profiles.artifact.consistency import find_inconsistency
from veltair.profiles.artifact.manifest import SCHEMA, LayerEntry, Manifest, Port
from veltair.profiles.artifact.summary import summarize
from veltair.types import CodeVersion, LatencyTable, Layer, ModelProfile, TensorSpec

MANIFEST, WEIGHTS, KERNELS, COLUMNS = "manifest.json", "weights.bin", "kernels.so", "columns.toml"
MOST_MANIFEST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class CheckedArtifact(ABC):
    """A compiled model that was checked: in its folder (`Artifact`), or in memory (`SealedArtifact`).

    ::

        artifact.manifest.max_batch, artifact.profiles()[0].layers
    """

    path: Path
    manifest: Manifest
    digest: str  # sha256 of manifest.json, which names the digests of the others

    def profiles(self) -> tuple[ModelProfile, ...]:
        """Profiles by batch size, ascending: one for each size that was timed."""
        m = self.manifest
        return tuple(_profile(m, self.digest, i) for i in range(len(m.batches)))

    def buckets(self) -> tuple[Self, ...]:
        """What `Manifest.every_bucket` has, each with the artifact's files."""
        return (self, *(replace(self, manifest=bucket) for bucket in self.manifest.buckets))

    @property
    @abstractmethod
    def library(self) -> str:
        """Where this process loads its kernels."""

    @abstractmethod
    def open_weights(self) -> int:
        """A descriptor of its weights, which the caller closes. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Artifact(CheckedArtifact):
    """A compiled model on disk, as it was when it was checked; what is served is a `SealedArtifact`.

    ::

        artifact = load_artifact(Path("models/resnet50"))
        print(artifact.summary())
        artifact.inputs[0].name, artifact.weights.stat().st_size
    """

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What callers give; see `Manifest.client_inputs`."""
        return self.manifest.client_inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        return self.manifest.outputs

    @property
    def layers(self) -> tuple[LayerEntry, ...]:
        return self.manifest.layers

    def summary(self) -> str:
        """The model, its inputs and its outputs, in a few lines."""
        return summarize(self.manifest)

    @property
    def kernels(self) -> Path:
        return self.path / KERNELS

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS

    @property
    def library(self) -> str:
        return str(self.kernels.absolute())  # without a slash, the system looks elsewhere

    def open_weights(self) -> int:
        return os.open(self.weights, os.O_RDONLY | os.O_CLOEXEC)


def _profile(m: Manifest, digest: str, at: int) -> ModelProfile:
    batch = m.batches[at]

    def spec(index: int) -> TensorSpec:
        buffer = m.buffers[index]
        return TensorSpec(f"buffer{index}", buffer.dtype, buffer.at(batch))

    layers = tuple(
        Layer(
            index=i,
            name=layer.name,
            op=layer.op,
            inputs=tuple(spec(b) for b in layer.inputs),
            outputs=tuple(spec(b) for b in layer.outputs),
            flops=layer.flops[at],
            bytes=layer.bytes[at],
        )
        for i, layer in enumerate(m.layers)
    )
    versions = tuple(
        tuple(
            CodeVersion(i, j, v.block_size, v.parallelism, v.symbol, LatencyTable(m.levels, v.latency_ns[at]))
            for j, v in enumerate(layer.versions)
        )
        for i, layer in enumerate(m.layers)
    )
    return ModelProfile(m.model, batch, layers, versions, dict(m.environment), digest)


def file_digest(path: Path) -> str:
    """The sha256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def decode_manifest(raw: bytes, path: Path) -> Manifest:
    """The manifest of the artifact at `path`. Raises ArtifactError for one that this version does not read."""
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:  # buckets in buckets, without end
        raise ArtifactError(f"{path / MANIFEST}: {error}") from None
    if manifest.schema != SCHEMA:
        raise ArtifactError(f"{path}: artifact schema {manifest.schema}, this version reads {SCHEMA}; compile again")
    return manifest


def require_digest(path: Path, found: str, expected: str) -> None:
    """Raises ArtifactError unless the file has the digest that the manifest says."""
    if found != expected:
        raise ArtifactError(f"{path}: truncated or altered (sha256 {found[:12]}…, not {expected[:12]}…)")


def require_consistent(path: Path, manifest: Manifest, weights_bytes: int) -> None:
    """Raises ArtifactError unless the parts of the artifact at `path` fit each other."""
    if fault := find_inconsistency(manifest, weights_bytes):
        raise ArtifactError(f"{path / MANIFEST}: {fault}")


def load_artifact(path: Path) -> Artifact:
    """Read and check an artifact.

    Raises ArtifactError for a missing, truncated, altered or inconsistent one.
    """
    try:
        raw = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: no model artifact there ({error.strerror})") from None
    manifest = decode_manifest(raw, path)
    digests = {KERNELS: manifest.kernels_digest, WEIGHTS: manifest.weights_digest}
    if manifest.columns_digest:
        digests[COLUMNS] = manifest.columns_digest
    for name, expected in digests.items():
        try:
            found = file_digest(path / name)
        except OSError as error:
            raise ArtifactError(f"{path / name}: {error.strerror}") from None
        require_digest(path / name, found, expected)
    require_consistent(path, manifest, (path / WEIGHTS).stat().st_size)
    return Artifact(path, manifest, hashlib.sha256(raw).hexdigest())


@contextmanager
def write_artifact(final: Path) -> Iterator[Path]:
    """Give a folder to write an artifact into; it becomes `final` when the block ends well, and vanishes otherwise.

    An artifact that already stands at `final` is replaced. Raises ArtifactError for any other folder with content.
    """
    if final.exists() and not (final / MANIFEST).is_file() and (not final.is_dir() or any(final.iterdir())):
        raise ArtifactError(f"{final}: exists and is no model artifact; it is left alone")
    token = secrets.token_hex(8)  # names that no other folder has
    draft, old = (final.parent / f".{final.name}.{kind}{token}" for kind in ("", "old."))
    try:
        try:
            _make_draft(final, draft)
            yield draft
            for path in (draft / MANIFEST, draft / WEIGHTS, draft / KERNELS, *draft.glob(COLUMNS)):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            if final.exists():
                old.mkdir(0o700)
                final.rename(old / "artifact")
            draft.rename(final)
        finally:
            _tidy_up(final, draft, old)
    finally:  # once more: a signal's exception comes out of any line, also out of one that tidies up
        _tidy_up(final, draft, old)


def _make_draft(final: Path, draft: Path) -> None:
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()  # as open as the umask says, since another user may serve it; those of `tempfile` never are
    except OSError as error:
        raise ArtifactError(f"{final}: cannot write there ({error.strerror})") from None


def _tidy_up(final: Path, draft: Path, old: Path) -> None:
    """Remove what is left beside the artifact; one that was to be replaced, and was not, comes back."""
    if (old / "artifact").exists() and not final.exists():
        (old / "artifact").rename(final)
    for folder in (draft, old):
        shutil.rmtree(folder, ignore_errors=True)
