"""`ThreadTraces`: traced queries that I/O threads have answered, refused or lost."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from veltair.machine.native_library import array_address
from veltair.server.wire import native
from veltair.server.wire.io_threads import IoThreads

MOST_TAKEN = 4096  # at once: wire.MOST_TRACES
_CHANCES = 1 << 64


class ThreadTraces:
    """Has the threads trace queries from here on.

    ::

        traces = ThreadTraces(threads, ratio=0.01)
        for ended in traces.take():  # native.ENDED_TRACE
            …
    """

    def __init__(self, threads: IoThreads, ratio: float) -> None:
        """`ratio`: of the queries whose clients say nothing about it."""
        self.lost = 0  # so far: queries that were traced while nobody took them
        self._threads, self._native = threads, native.library()
        self._native.wire_trace(threads.handle, min(int(ratio * _CHANCES), _CHANCES - 1))

    def take(self) -> Iterator[NDArray[np.void]]:
        """The traces that have ended since the last time, of each thread that has some."""
        lost = ctypes.c_uint64()
        for thread in range(self._threads.count if self._threads.handle else 0):
            ended = np.empty(MOST_TAKEN, native.ENDED_TRACE)
            where = array_address(ended), MOST_TAKEN, ctypes.byref(lost)
            if taken := self._native.wire_take_traces(self._threads.handle, thread, *where):
                yield ended[:taken]
        self.lost += lost.value
