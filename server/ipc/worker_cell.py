"""`WorkerCell`: shared memory in which the engine orders blocks of one worker, steers them, and learns of their end.

What one side writes while the other reads has a cache line of its own:

    byte    field                                                    written by
    0       u64 sequence, u64 cancelled query                        engine, at any time
    64      u64 progress: the layer in execution                     worker, in a block
    128     u32 done: number of the last order that has ended        worker
    136     the end: u64 query, u32 stop, u32 reported, u64 begin_ns, u64 end_ns, u64 told_ns
    192     core set, as 1,024 bits                                  engine, at any time
    320     core set at the time of the order, likewise              engine, between two blocks
    448     u32 ordered: number of the last order                    engine
    456     the order: u64 query, u32 queries, u32 layers, u32 callers,
    480     u64 begin_ns, u64 execute_ns of the queries' blocks before,
    496     its key: u32 tenant, u32 start, u32 slot, u32 samples, then a u32 version for each layer,
            then for each query u32 slot, u32 samples, then the callers (`done_queries.pack_callers`)

All is little-endian. The sequence is odd while the engine writes the core set or the cancelled query and even after,
so a reader that finds it even and unchanged has read one state; a block stops when it changes. Orders are numbered
from 1 on. The engine writes the next one only when it knows that the last has ended, so nothing else guards it and
the end: `worker_cell.c` publishes each by its number and wakes who waits for it, the worker in a futex wait on
`ordered`, the engine by an eventfd that all its workers share, the bell. A block that failed has no end here, but a
message, `KernelFailed`; so has an order of query 0, which has the worker read its channel. The order ATTEND has it run
what I/O threads order (`standing_orders`); it has ended as soon as the worker does.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache, lru_cache
from struct import Struct, pack
from typing import Any, NamedTuple

from veltair.machine.native_library import native_library
from veltair.server.ipc.block_orders import MEMBER_BYTES, VERSION_BYTES, BlockEnd, Order
from veltair.server.ipc.done_queries import CALLER_BYTES
from veltair.types import CoreSet

MAX_CORES = 1024
ATTEND = 0xFFFF_FFFF_FFFF_FFFF  # in place of a query: the number of queries is then that of the term
_SEQUENCE, _CANCELLED, _PROGRESS = 0, 1, 8  # words of 8 bytes
_DONE, _ORDERED = 32, 112  # words of 4 bytes
_END_AT, _END = 136, Struct("<QIIQQQ")
_CORES = slice(192, 192 + MAX_CORES // 8)
_CORES_ORDERED = slice(320, 320 + MAX_CORES // 8)
_ORDER_AT, _ORDER = 456, Struct("<QIII4xqqIIII")
_HEAD, _KEY_AT, _VERSIONS_AT = Struct("<QIII4xqq"), 496, 512


def cell_bytes(layers: int, queries: int) -> int:
    """Size of a cell for blocks of that many layers and batches of that many queries."""
    size = _VERSIONS_AT + VERSION_BYTES * layers + (MEMBER_BYTES + CALLER_BYTES) * queries
    return -(-size // 8) * 8


def create_worker_cell(size: int) -> int:
    """New memory, all zero: no order, no core, nothing cancelled (query ids start at 1). Returns its descriptor."""
    fd = os.memfd_create("veltair-cell", os.MFD_CLOEXEC)
    os.truncate(fd, size)
    return fd


class Callers(NamedTuple):
    """Who waits for the queries of an order, and what their blocks before took.

    ::

        callers = cell.callers()
        done.report(callers.address, callers.queries, callers.begin_ns or begin_ns, execute_ns, end_ns)
    """

    address: int  # of them packed, in the cell
    queries: int  # how many; 0: the engine tells of their end
    begin_ns: int  # of their first block; 0: it is this one
    execute_ns: int


class WorkerCell:
    """Maps the memory behind a descriptor of `create_worker_cell`; the descriptor may be closed afterwards.

    >>> from veltair.server.ipc.block_orders import Members, unpack_key
    >>> cell = WorkerCell(create_worker_cell(cell_bytes(layers=64, queries=8)))
    >>> cell.publish_order(Order(77, 0, Members.of([(3, 1)]), start=0, versions=(0, 2), cores=(0, 5)))
    >>> cell.wait_for_order(patience_ns=0)
    True
    >>> query, key = cell.read_order()
    >>> query, unpack_key(key).versions, cell.read()
    (77, (0, 2), (2, (0, 5), 0))
    """

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, os.fstat(fd).st_size)
        self._words = memoryview(self._page).cast("Q")
        self._halves = memoryview(self._page).cast("I")
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._functions = _functions()
        self._cores: CoreSet = ()  # the engine: what it wrote last
        self._cancelled = self._ordered = self._ended = 0
        self._taken = 0  # the worker: the order that it took last

    # The engine's side

    def publish_order(self, order: Order) -> None:
        """Wake the worker to run this; its last block has ended. Takes back a cancellation."""
        if order.cores != self._cores or self._cancelled:
            self._write(order.cores, 0)
        page, members, versions = self._page, order.members, _pack_versions(order.versions)
        queries, layers, callers = len(members.packed) // MEMBER_BYTES, len(order.versions), order.callers
        _ORDER.pack_into(
            page,
            _ORDER_AT,
            order.query,
            queries,
            layers,
            len(callers) // CALLER_BYTES,
            order.begin_ns,
            order.execute_ns,
            order.tenant,
            order.start,
            members.slot,
            members.samples,
        )
        rest = versions + members.packed + callers
        page[_VERSIONS_AT : _VERSIONS_AT + len(rest)] = rest
        page[_CORES_ORDERED] = pack_cores(order.cores)
        self._publish()

    def call(self) -> None:
        """Wake the worker to read its channel; its last block has ended, and its answer is a message."""
        _HEAD.pack_into(self._page, _ORDER_AT, 0, 0, 0, 0, 0, 0)
        self._publish()

    def attend(self, term: int) -> None:
        """Wake the worker to run what I/O threads order in this term; its last block has ended."""
        _HEAD.pack_into(self._page, _ORDER_AT, ATTEND, term, 0, 0, 0, 0)
        self._publish()

    def take_over(self, cores: CoreSet) -> None:
        """What the worker runs has been claimed, and is from here on as if it had been ordered on these cores."""
        self._page[_CORES_ORDERED] = pack_cores(cores)
        self._write(cores, 0)

    def _publish(self) -> None:
        self._ordered = (self._ordered + 1) & 0xFFFF_FFFF
        self._functions.publish_order(self._base + 4 * _ORDERED, self._ordered)

    @property
    def cores(self) -> CoreSet:
        """What the engine wrote last."""
        return self._cores

    def set_cores(self, cores: CoreSet) -> None:
        """The worker moves to these cores before its next layer."""
        self._write(cores, self._cancelled)

    def cancel(self, query: int) -> None:
        """The worker stops this query before its next layer."""
        self._write(self._cores, query)

    def is_to_stop(self, query: int) -> bool:
        """Whether the worker has been told to stop this query."""
        return self._cancelled == query

    def _write(self, cores: CoreSet, cancelled: int) -> None:
        words = self._words
        self._cores, self._cancelled = cores, cancelled
        words[_SEQUENCE] += 1
        self._page[_CORES] = pack_cores(cores)
        words[_CANCELLED] = cancelled
        words[_SEQUENCE] += 1

    def take_end(self) -> BlockEnd | None:
        """The end of the block ordered last, once; None while it runs."""
        if self._halves[_DONE] == self._ended:
            return None
        self._ended = self._functions.ended(self._base + 4 * _DONE)
        query, stop, reported, begin_ns, end_ns, told_ns = _END.unpack_from(self._page, _END_AT)
        return BlockEnd(query, stop, bool(reported), begin_ns, end_ns, told_ns)

    # The worker's side

    def wait_for_order(self, patience_ns: int) -> bool:
        """Sleep until there is an order that was not seen; False when there is none after that time or a signal."""
        number: int = self._functions.wait_for_order(self._base + 4 * _ORDERED, self._taken, patience_ns)
        before, self._taken = self._taken, number
        return number != before

    def read_order(self) -> tuple[int, bytes]:
        """Query and key (`unpack_key`) of the last order; query 0: the channel is to be read."""
        query, _, layers, *_ = _HEAD.unpack_from(self._page, _ORDER_AT)
        return query, self._page[_KEY_AT : _VERSIONS_AT + VERSION_BYTES * layers]

    def read_term(self) -> int:
        """Of an order to attend."""
        _, term, *_ = _HEAD.unpack_from(self._page, _ORDER_AT)
        return int(term)

    def read_members(self) -> bytes:
        """The queries of the last order (`unpack_members`)."""
        _, queries, layers, *_ = _HEAD.unpack_from(self._page, _ORDER_AT)
        begin = _VERSIONS_AT + VERSION_BYTES * layers
        return self._page[begin : begin + MEMBER_BYTES * queries]

    def callers(self) -> Callers:
        """Who waits for the queries of the last order."""
        _, queries, layers, count, begin_ns, execute_ns = _HEAD.unpack_from(self._page, _ORDER_AT)
        address = self._base + _VERSIONS_AT + VERSION_BYTES * layers + MEMBER_BYTES * queries
        return Callers(address, count, begin_ns, execute_ns)

    def read_ordered_cores(self) -> CoreSet:
        """The core set at the time of the last order."""
        return unpack_cores(self._page[_CORES_ORDERED])

    def publish_end(self, end: BlockEnd, bell: int) -> None:
        """Tell the engine that the block has ended. `bell`: the descriptor of its eventfd."""
        times = end.begin_ns, end.end_ns, end.told_ns
        _END.pack_into(self._page, _END_AT, end.query, end.stop, end.reported, *times)
        self._functions.publish_end(self._base + 4 * _DONE, self._taken, bell)

    def word_addresses(self) -> tuple[int, int]:
        """Addresses of the sequence and the progress, for native code; valid as long as this cell lives."""
        return self._base + 8 * _SEQUENCE, self._base + 8 * _PROGRESS

    @property
    def sequence(self) -> int:
        return self._words[_SEQUENCE]

    def read(self) -> tuple[int, CoreSet, int]:
        """Sequence, core set and cancelled query, all of one moment."""
        while True:
            sequence = self._words[_SEQUENCE]
            mask = self._page[_CORES]
            cancelled = self._words[_CANCELLED]
            if sequence % 2 == 0 and self._words[_SEQUENCE] == sequence:
                return sequence, unpack_cores(mask), cancelled

    @property
    def progress(self) -> int:
        """The layer in execution, or the last one that was."""
        return self._words[_PROGRESS]


@cache
def _functions() -> Any:
    library = native_library("veltair.server.ipc._worker_cell")
    word, number = ctypes.c_void_p, ctypes.c_uint32
    library.publish_order.argtypes, library.publish_order.restype = (word, number), None
    library.wait_for_order.argtypes, library.wait_for_order.restype = (word, number, ctypes.c_int64), number
    library.publish_end.argtypes, library.publish_end.restype = (word, number, ctypes.c_int), None
    library.ended.argtypes, library.ended.restype = (word,), number
    return library


# A plan orders the same versions again and again, on the same few core sets.


@lru_cache(maxsize=4096)
def _pack_versions(versions: tuple[int, ...]) -> bytes:
    return pack(f"<{len(versions)}I", *versions)


@lru_cache(maxsize=4096)
def pack_cores(cores: CoreSet) -> bytes:
    return sum(1 << core for core in cores).to_bytes(MAX_CORES // 8, "little")


@lru_cache(maxsize=4096)
def unpack_cores(packed: bytes) -> CoreSet:
    mask, cores = int.from_bytes(packed, "little"), []
    while mask:
        low = mask & -mask
        cores.append(low.bit_length() - 1)
        mask ^= low
    return tuple(cores)
