"""Writes the constants of an artifact: streamed, aligned, and identical ones only once."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from veltair.compiler.timing.measure import content_digest, in_file, write_chunks
from veltair.compiler.timing.measuring_messages import FileTensor
from veltair.profiles.artifact.manifest import ALIGNMENT


class WeightFile:
    """The weight file of an artifact while it is written; a context manager.

    >>> import numpy as np
    >>> with WeightFile(Path("/dev/null")) as weights:
    ...     ones, zeros = np.ones(4), np.zeros(4)
    ...     weights.add(ones), weights.add(zeros), weights.add(ones)
    (0, 64, 0)
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._offsets: dict[bytes, int] = {}  # by content
        self._mapped: dict[FileTensor, int] = {}  # by location in another file: large tables are not read twice
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
        """SHA-256 of the content written so far, as hex."""
        return self._hash.hexdigest()

    def add(self, array: NDArray[Any]) -> int:
        """Write the array's content unless the file already has it. Return its offset in bytes."""
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
        """Append raw bytes."""
        self._file.write(content)
        self._hash.update(content)
        self._size += len(content)
