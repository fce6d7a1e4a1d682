"""`SealedArtifact`: a checked artifact in memory that nobody can change any more.

The files of a folder may be overwritten, cut short, replaced or deleted at any moment, also between a check and what
follows from it. So each is opened once, and copied while it is digested; the copies are sealed (`memfd_create(2)`), and
they are what is mapped and executed, in every process and however long after. Their descriptors travel between
processes; the memory stays until the last is closed and the last mapping gone.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import (
    KERNELS,
    MANIFEST,
    WEIGHTS,
    CheckedArtifact,
    decode_manifest,
    require_consistent,
    require_digest,
)
from veltair.profiles.artifact.file_owners import require_own_file

PIECE_BYTES = 1 << 20  # read, digested and written at a time
SEAL_ATTEMPTS, SEAL_PAUSE_S = 50, 0.05  # beside 0.15 s that the system waits in each
_NAMES = {"manifest": MANIFEST, "kernels": KERNELS, "weights": WEIGHTS}
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SealedFiles(NamedTuple):
    """Descriptors of the three sealed files in one process, in the order in which they travel.

    >>> SealedFiles(7, 8, 9).weights
    9
    """

    manifest: int
    kernels: int
    weights: int

    def close(self) -> None:
        for descriptor in self:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class SealedArtifact(CheckedArtifact):
    """A model in memory as it was checked. `path` is where it was read, for messages alone.

    ::

        artifact = seal_artifact(Path("models/resnet50"))
        executor = Executor(artifact)
        artifact.files.close()  # once the executor is gone
    """

    files: SealedFiles

    @property
    def library(self) -> str:
        return f"/proc/self/fd/{self.files.kernels}"

    def open_weights(self) -> int:
        return os.dup(self.files.weights)


def open_sealed(path: Path, digest: str, descriptors: Sequence[int]) -> SealedArtifact:
    """The artifact that another process has sealed. Raises ArtifactError where not all descriptors came along, and
    closes those that did."""
    if len(descriptors) != len(SealedFiles._fields):
        for descriptor in descriptors:
            os.close(descriptor)
        raise ArtifactError(f"{path}: {len(descriptors)} of its descriptors came along; are too many files open?")
    files = SealedFiles(*descriptors)
    return SealedArtifact(path, decode_manifest(_content(files.manifest), path), digest, files)


def seal_artifact(
    path: Path, held: Mapping[str, SealedFiles] | None = None, pause: Callable[[], None] | None = None
) -> SealedArtifact:
    """Check an artifact and copy it into sealed memory. One that is in `held`, by digest, is checked and not copied.
    `pause` is called after each piece of PIECE_BYTES.

    Raises ArtifactError for one that is missing, truncated, altered or inconsistent, or that others may write.
    """
    with ExitStack() as opened, ExitStack() as copies:

        def copy_of(name: str) -> int:
            descriptor = os.memfd_create(f"veltair-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            copies.callback(os.close, descriptor)
            return descriptor

        folder = _open_folder(path)
        opened.callback(os.close, folder)
        sources = {}
        for name, file_name in _NAMES.items():
            sources[name] = _open_file(path, folder, file_name)
            opened.callback(os.close, sources[name])
        raw = _content(sources["manifest"])
        manifest, digest = decode_manifest(raw, path), hashlib.sha256(raw).hexdigest()
        files = None if held is None else held.get(digest)
        made = {} if files else {name: copy_of(file_name) for name, file_name in _NAMES.items()}
        if made:
            _write(made["manifest"], memoryview(raw), path / MANIFEST)
        for name, expected in (("kernels", manifest.kernels_digest), ("weights", manifest.weights_digest)):
            found = _digest_and_copy(sources[name], made.get(name), path / _NAMES[name], pause)
            require_digest(path / _NAMES[name], found, expected)
        require_consistent(path, manifest, os.fstat(files.weights if files else made["weights"]).st_size)
        for name, descriptor in made.items():
            _seal(descriptor, path / _NAMES[name])
        copies.pop_all()
        return SealedArtifact(path, manifest, digest, files or SealedFiles(**made))


def _seal(copy: int, path: Path) -> None:
    """Refuse every change of a copy from now on.

    The system does not seal what it uses for something else at that moment, as pages that it moves to make room for
    larger ones: it waits for these a little, and gives up with EBUSY.
    """
    for attempt in range(SEAL_ATTEMPTS):
        if attempt:
            time.sleep(SEAL_PAUSE_S)
        try:
            fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise ArtifactError(f"{path}: its copy in memory cannot be sealed: the system goes on using it")


def _open_folder(path: Path) -> int:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ArtifactError(f"{path}: no model artifact there ({error.strerror})") from None
    return _owned(folder, path)


def _open_file(path: Path, folder: int, name: str) -> int:
    """Links are followed, since a store of models may be made of them: what counts is the file that was opened."""
    try:
        # A pipe would wait for its other end.
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        what = f"{path}: no model artifact there" if name == MANIFEST else f"{path / name}: cannot be read"
        raise ArtifactError(f"{what} ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ArtifactError(f"{path / name}: expected a file")
    return _owned(file, path / name)


def _owned(descriptor: int, path: Path) -> int:
    try:
        require_own_file(descriptor, path)
    except ArtifactError:
        os.close(descriptor)
        raise
    return descriptor


def _content(file: int) -> bytes:
    size = os.fstat(file).st_size
    return os.pread(file, size, 0)


def _digest_and_copy(file: int, copy: int | None, path: Path, pause: Callable[[], None] | None) -> str:
    """The sha256 of a file, as hex. Each piece of it that is digested is written to the copy, if there is one."""
    found, offset = hashlib.sha256(), 0
    buffer = memoryview(bytearray(PIECE_BYTES))
    try:
        while size := os.preadv(file, [buffer], offset):
            found.update(buffer[:size])
            if copy is not None:
                _write(copy, buffer[:size], path)
            # The file is not looked at again: its cache would hold the model a second time.
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)
            offset += size
            if pause:
                pause()
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror}") from None
    return found.hexdigest()


def _write(copy: int, content: memoryview, path: Path) -> None:
    try:
        while content:
            content = content[os.write(copy, content) :]
    except OSError as error:
        raise ArtifactError(f"{path}: no memory for it ({error.strerror})") from None
