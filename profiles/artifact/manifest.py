"""The model artifact: schema, reading and writing. No TVM in here.

An artifact is a folder with three files, each covered by the digest:

    manifest.json   this module's `Manifest`
    weights.bin     every constant in the layout its kernels want, 64-byte aligned; mapped, never copied
    kernels.so      every code version of every layer as a symbol of its own

It is written beside its final name and renamed, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from veltair.errors import ArtifactError
from veltair.types import CodeVersion, LatencyTable, Layer, ModelProfile, TensorSpec

SCHEMA = 1
ALIGNMENT = 64  # bytes; what TVM's kernels assume of every tensor
SLACK_BYTES = 8192  # kernels may read a register tile past the end of a tensor, never write there
LevelSource: TypeAlias = Literal["measured", "modelled"]
Storage: TypeAlias = Literal["fp32", "fp16", "int8"]  # of the rows of a table; bytes have a scale and a bias a row
MANIFEST, WEIGHTS, KERNELS = "manifest.json", "weights.bin", "kernels.so"


def shape_at(shape: Sequence[int], batch: int) -> tuple[int, ...]:
    """A shape for a query of this batch: a dimension -k is k times it."""
    return tuple(-dim * batch if dim < 0 else dim for dim in shape)


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor that kernels take. A dimension -k stands for k times the batch of the query."""

    kind: Literal["input", "output", "weight", "arena"]
    dtype: str  # numpy name; bfloat16 travels as uint16
    shape: tuple[int, ...]
    offset: int  # bytes into weights.bin or the arena; the position among the model's rooms or outputs

    def at(self, batch: int) -> tuple[int, ...]:
        """The shape for a query of this batch."""
        return shape_at(self.shape, batch)


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a feature begins in a bank: at `start` times the batch."""

    bank: int  # among Manifest.banks
    start: int


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output of the model. `low`/`high` bound integer ids, both inclusive.

    A feature lies in banks (see `rooms`): a number in one, a string's ends in one and its bytes in another.
    """

    name: str
    dtype: str  # numpy name, or "string"
    shape: tuple[int, ...]  # first dimension -1: the batch
    low: int | None = None
    high: int | None = None
    places: tuple[Place, ...] = ()
    max_bytes: int = 0  # of strings: room for a row's text, on average over a batch
    separator: str = ""  # of strings: what splits one into tokens

    def at(self, batch: int) -> tuple[int, ...]:
        """The shape for a query of this batch."""
        return shape_at(self.shape, batch)

    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.dtype, self.shape)


class VersionEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    symbol: str
    arguments: tuple[int, ...]  # indices into Manifest.buffers, in the kernel's order
    block_size: int  # bytes of working set of one parallel task
    parallelism: int
    point: dict[str, int | str]  # where in its design space this version lies
    latency_ns: tuple[tuple[tuple[int, ...], ...], ...]  # (batches, levels, cores)
    origin: str = ""  # how the search came by the point: searched, a shipped record, another workload's best, …


class LayerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    op: str
    inputs: tuple[int, ...]  # buffer indices of activations, weights excluded
    outputs: tuple[int, ...]
    flops: tuple[int, ...]  # (batches)
    bytes: tuple[int, ...]  # (batches)
    versions: tuple[VersionEntry, ...]
    note: str = ""  # what is worth knowing of it


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    model: str
    precision: Literal["fp32", "bf16"]
    tolerance: float  # relative error against the fp32 reference that `verify` allows
    qos_ns: int
    target: dict[str, str | int]  # the TVM target that the kernels were built for
    features: tuple[str, ...]  # instruction sets that the kernels use
    max_batch: int
    batches: tuple[int, ...]  # batch sizes that were timed, ascending; the last is max_batch
    levels: tuple[float, ...]  # interference levels that were timed, ascending from 1.0
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    buffers: tuple[Buffer, ...]
    arena_bytes: int  # zeroed once by whoever allocates it: halos of padded activations rely on it
    layers: tuple[LayerEntry, ...]
    environment: dict[str, str]
    source_digest: str  # sha256 of the ONNX file
    kernels_digest: str
    weights_digest: str
    level_sources: tuple[LevelSource, ...] = ()  # of each level; none stands for all measured
    banks: tuple[Port, ...] = ()  # one-dimensional
    tables: Storage = "fp32"  # what was asked for float tables that are looked up
    tables_error: float = 0.0  # of a number in them at most, over the largest magnitude in its table

    @property
    def rooms(self) -> tuple[Port, ...]:
        """The tensors that a query's inputs lie in: inputs by themselves, then the banks of all others."""
        return (*(port for port in self.inputs if not port.places), *self.banks)


@dataclass(frozen=True, slots=True)
class Artifact:
    path: Path
    manifest: Manifest
    digest: str  # sha256 of manifest.json, which names the digests of the other two

    @property
    def kernels(self) -> Path:
        return self.path / KERNELS

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS

    def profiles(self) -> tuple[ModelProfile, ...]:
        """One profile for each timed batch size, ascending."""
        m = self.manifest
        return tuple(_profile(m, self.digest, i) for i in range(len(m.batches)))


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
    """sha256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(path: Path) -> Artifact:
    """Read and check an artifact.

    Raises ArtifactError for a missing, truncated, altered or inconsistent one.
    """
    from veltair.profiles.artifact.consistency import inconsistency  # which is written in this module's terms

    try:
        raw = (path / MANIFEST).read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: no model artifact there ({error.strerror})") from None
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ArtifactError(f"{path / MANIFEST}: {error}") from None
    if manifest.schema != SCHEMA:
        raise ArtifactError(f"{path}: artifact schema {manifest.schema}, this version reads {SCHEMA}; compile again")
    for name, expected in ((KERNELS, manifest.kernels_digest), (WEIGHTS, manifest.weights_digest)):
        try:
            found = file_digest(path / name)
        except OSError as error:
            raise ArtifactError(f"{path / name}: {error.strerror}") from None
        if found != expected:
            raise ArtifactError(f"{path / name}: truncated or altered (sha256 {found[:12]}…, not {expected[:12]}…)")
    if fault := inconsistency(manifest, (path / WEIGHTS).stat().st_size):
        raise ArtifactError(f"{path / MANIFEST}: {fault}")
    return Artifact(path, manifest, hashlib.sha256(raw).hexdigest())


def nbytes(buffer: Buffer, batch: int) -> int:
    """Bytes of a buffer for a query of this batch."""
    size = ITEM_BYTES[buffer.dtype]
    for dim in buffer.at(batch):
        size *= dim
    return size


ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip


@contextmanager
def writing(final: Path) -> Iterator[Path]:
    """A folder to write an artifact into; becomes `final` when the block ends well, vanishes otherwise.

    An artifact that already stands at `final` is replaced; any other folder with content is left alone.
    """
    if final.exists() and not (final / MANIFEST).is_file() and (not final.is_dir() or any(final.iterdir())):
        raise ArtifactError(f"{final}: exists and is no model artifact; it is left alone")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    except OSError as error:
        raise ArtifactError(f"{final}: cannot write there ({error.strerror})") from None
    try:
        yield draft
        for name in (MANIFEST, WEIGHTS, KERNELS):
            with (draft / name).open("rb") as file:
                os.fsync(file.fileno())
        if final.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{final.name}.old.", dir=final.parent))
            final.rename(old / "artifact")
            draft.rename(final)
            shutil.rmtree(old)
        else:
            draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
