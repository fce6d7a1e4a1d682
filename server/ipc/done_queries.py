"""`DoneQueries`: queries that are done, as a worker tells the I/O threads of the front, past the engine.

The workers' end of `server/wire/done_queries.c`. The engine writes who waits for a query into the worker's cell
(`Caller`); when the query's last layer has run, the worker tells the I/O thread before it tells the engine, so that no
answer waits for a decision. Every other end is the engine's to tell, in a `Lane`; so is one that a worker did not live
to tell, and a thread drops what it is told for the second time.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from veltair.machine.native_library import array_address, native_library
from veltair.server.ipc.lane_descriptors import LaneDescriptors

_CALLER = Struct("<QqII")
CALLER_BYTES = _CALLER.size
DONE = np.dtype(  # a record of memory, as `done_queries.h` has it
    [
        ("query", np.uint64),
        ("execute_ns", np.int64),
        ("taken_ns", np.int64),
        ("begin_ns", np.int64),
        ("end_ns", np.int64),
        ("ended_ns", np.int64),
        ("next", np.uint32),
        ("unasked", np.uint32),
        ("refused", np.uint32),
        ("unused", np.uint32),
    ]
)


class Caller(NamedTuple):
    """Who waits for a query.

    >>> len(pack_callers([Caller(query=7, taken_ns=100, lane=0, place=3)])) == CALLER_BYTES
    True
    """

    query: int
    taken_ns: int  # when the engine took it
    lane: int  # of the I/O thread that waits
    place: int  # tenant * slots + slot


def pack_callers(callers: Iterable[Caller]) -> bytes:
    """The callers as a worker's cell holds them."""
    return b"".join([_CALLER.pack(*caller) for caller in callers])


def create_done_queries(lanes: int, places: int) -> int:
    """New memory for that many I/O threads and slots, with no query in it. Returns its descriptor."""
    fd = os.memfd_create("veltair-done", os.MFD_CLOEXEC)
    os.truncate(fd, _functions().done_queries_bytes(lanes, places))
    return fd


class DoneQueries:
    """Maps the memory that the front has created.

    >>> wake = os.eventfd(0)
    >>> fd = create_done_queries(lanes=1, places=4)
    >>> done = DoneQueries(LaneDescriptors(lanes=-1, records=0, bell=-1, wakes=(wake,), done=fd, places=4))
    >>> callers = ctypes.create_string_buffer(pack_callers([Caller(query=7, taken_ns=100, lane=0, place=3)]))
    >>> told_ns = done.report(ctypes.addressof(callers), 1, begin_ns=110, execute_ns=20, end_ns=130)
    >>> os.eventfd_read(wake), done.take(lane=0)["query"].tolist()
    (1, [7])
    """

    def __init__(self, descriptors: LaneDescriptors) -> None:
        self._lanes, self._places = len(descriptors.wakes), descriptors.places
        self._functions = _functions()
        self._memory = mmap.mmap(descriptors.done, self._functions.done_queries_bytes(self._lanes, self._places))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._wakes = np.array(descriptors.wakes, np.int32)

    def report(self, callers: int, count: int, begin_ns: int, execute_ns: int, end_ns: int) -> int:
        """Tell the I/O threads, and wake them. Nothing of this process touches the queries' slots any more.

        Args:
            callers: the address of as many packed callers as `count` says.
            begin_ns: of the queries' first block.
            execute_ns: in all of their blocks.
            end_ns: of their last block.

        Returns:
            When they were told.
        """
        told_ns: int = self._functions.report_done(
            *self.memory,
            callers,
            count,
            begin_ns,
            execute_ns,
            end_ns,
        )
        return told_ns

    @property
    def memory(self) -> tuple[int, int, int, int]:
        """For native code: address, I/O threads, slots in all, and the address of the descriptors that wake each."""
        return self.address, self._lanes, self._places, array_address(self._wakes)

    def take(self, lane: int) -> np.ndarray[Any, np.dtype[np.void]]:
        """The front's end, as the I/O threads do it: the queries that are done, oldest first, as records `DONE`."""
        records = np.empty(self._places, DONE)
        taken = self._functions.take_done(
            self.address, self._lanes, self._places, lane, array_address(records), len(records)
        )
        return records[:taken]


@cache
def _functions() -> Any:
    library = native_library("veltair.server.ipc._done_queries")
    pointer, number, time = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64
    library.done_queries_bytes.argtypes, library.done_queries_bytes.restype = (number, number), ctypes.c_uint64
    library.report_done.argtypes = (pointer, number, number, pointer, pointer, number, time, time, time)
    library.report_done.restype = time
    library.take_done.argtypes = (pointer, number, number, number, pointer, number)
    library.take_done.restype = number
    return library
