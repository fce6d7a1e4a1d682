"""A worker's cell: a page of shared memory that the engine writes and the worker reads between layers.

Words of 8 bytes: sequence, cancelled query, progress, unused, then the core set as 1,024 bits. The sequence is
odd while the engine writes and even after, so a reader that finds it even and unchanged has read one state. Only
the progress is the worker's. A message to the worker and a change of the cell need no order between them: the
cell always holds the present core set, and a cancellation names its query.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from veltair.types import CoreSet

MAX_CORES = 1024
_SEQUENCE, _CANCELLED, _PROGRESS = range(3)
_MASK = slice(32, 32 + MAX_CORES // 8)


class Cell:
    """Map the page behind a file descriptor of `create`; the descriptor may be closed afterwards."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self.words = memoryview(self._page).cast("Q")

    # The engine's side.

    def order(self, cores: CoreSet) -> None:
        mask = sum(1 << core for core in cores)
        self.words[_SEQUENCE] += 1
        self._page[_MASK] = mask.to_bytes(MAX_CORES // 8, "little")
        self.words[_SEQUENCE] += 1

    def cancel(self, query: int) -> None:
        self.words[_SEQUENCE] += 1
        self.words[_CANCELLED] = query
        self.words[_SEQUENCE] += 1

    # The worker's side.

    def addresses(self) -> tuple[int, int]:
        """Of the words of sequence and progress, for native code; they hold as long as this cell."""
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        return base + 8 * _SEQUENCE, base + 8 * _PROGRESS

    @property
    def sequence(self) -> int:
        return self.words[_SEQUENCE]

    def read(self) -> tuple[int, CoreSet, int]:
        """Sequence, core set and cancelled query, all of one moment."""
        while True:
            sequence = self.words[_SEQUENCE]
            mask = int.from_bytes(self._page[_MASK], "little")
            cancelled = self.words[_CANCELLED]
            if sequence % 2 == 0 and self.words[_SEQUENCE] == sequence:
                return sequence, _bits(mask), cancelled

    @property
    def progress(self) -> int:
        """The layer in execution, or the last one that was."""
        return self.words[_PROGRESS]

    @progress.setter
    def progress(self, layer: int) -> None:
        self.words[_PROGRESS] = layer


def create() -> int:
    """A new page, all zero: no core, nothing cancelled (query ids start at 1). Returns its descriptor."""
    fd = os.memfd_create("veltair-cell", os.MFD_CLOEXEC)
    os.truncate(fd, mmap.PAGESIZE)
    return fd


def _bits(mask: int) -> CoreSet:
    cores = []
    while mask:
        low = mask & -mask
        cores.append(low.bit_length() - 1)
        mask ^= low
    return tuple(cores)
