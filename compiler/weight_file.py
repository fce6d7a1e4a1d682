"""Writes the constants of an artifact: streamed, aligned, identical ones once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from veltair.compiler.timing.measure import content_digest, in_file, write_chunks
from veltair.compiler.timing.measuring_process import FileTensor
from veltair.profiles.artifact.manifest import ALIGNMENT


class WeightFile:
    """A file being written; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._offsets: dict[bytes, int] = {}  # by content
        self._mapped: dict[FileTensor, int] = {}  # by place in another file, which saves reading large tables twice
        self._hash = hashlib.sha256()
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def digest(self) -> str:
        """sha256 of what was written so far, as hex."""
        return self._hash.hexdigest()

    def add(self, array: NDArray[Any]) -> int:
        """Offset in bytes of the array's content, which is written unless it already stands in the file."""
        source = in_file(array)
        if source is not None and source in self._mapped:
            return self._mapped[source]
        digest = content_digest(array)
        if digest not in self._offsets:
            self.write(b"\0" * (-self._size % ALIGNMENT))
            self._offsets[digest] = self._size
            write_chunks(array, self)
        if source is not None:
            self._mapped[source] = self._offsets[digest]
        return self._offsets[digest]

    def write(self, content: bytes | memoryview) -> None:
        self._file.write(content)
        self._hash.update(content)
        self._size += len(content)
