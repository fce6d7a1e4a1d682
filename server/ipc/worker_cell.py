"""`WorkerCell`: a page of shared memory that the engine writes and one worker reads between layers.

Words of 8 bytes: sequence, cancelled query, progress, unused, then the core set as 1,024 bits. The sequence is odd
while the engine writes and even after, so a reader that finds it even and unchanged has read one state. Only the
progress is written by the worker. A message to the worker and a change of the cell need no order between them: the
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


def create_worker_cell() -> int:
    """A new page, all zero: no core, nothing cancelled (query ids start at 1). Returns its descriptor."""
    fd = os.memfd_create("veltair-cell", os.MFD_CLOEXEC)
    os.truncate(fd, mmap.PAGESIZE)
    return fd


class WorkerCell:
    """Maps the page behind a descriptor of `create_worker_cell`; the descriptor may be closed afterwards.

    >>> cell = WorkerCell(create_worker_cell())
    >>> cell.set_cores((0, 5))
    >>> cell.cancel(77)
    >>> cell.read()
    (4, (0, 5), 77)
    """

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self.words = memoryview(self._page).cast("Q")

    # The engine's side

    def set_cores(self, cores: CoreSet) -> None:
        """The worker moves to these cores before its next layer."""
        mask = sum(1 << core for core in cores)
        self.words[_SEQUENCE] += 1
        self._page[_MASK] = mask.to_bytes(MAX_CORES // 8, "little")
        self.words[_SEQUENCE] += 1

    def cancel(self, query: int) -> None:
        """The worker stops this query before its next layer; 0 cancels none."""
        self.words[_SEQUENCE] += 1
        self.words[_CANCELLED] = query
        self.words[_SEQUENCE] += 1

    # The worker's side

    def word_addresses(self) -> tuple[int, int]:
        """Addresses of the sequence and the progress, for native code; valid as long as this cell lives."""
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


def _bits(mask: int) -> CoreSet:
    cores = []
    while mask:
        low = mask & -mask
        cores.append(low.bit_length() - 1)
        mask ^= low
    return tuple(cores)
