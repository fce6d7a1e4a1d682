"""`LentWorker`: runs what I/O threads of the front order by themselves, until the engine wants the worker back."""

from __future__ import annotations

import ctypes
import os
import time
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from veltair.machine.native_library import array_address, library_path
from veltair.server.ipc.block_orders import BlockEnd, BlockKey, pack_key
from veltair.server.ipc.channel import Channel, ChannelClosedError
from veltair.server.ipc.done_queries import DoneQueries
from veltair.server.ipc.messages import KernelFailed, ToWorker
from veltair.server.ipc.standing_orders import MOST_ORDERS, StandingOrder, StandingOrders
from veltair.server.ipc.worker_cell import ATTEND, WorkerCell

if TYPE_CHECKING:
    from veltair.profiles.runtime.block_runner import BoundBlock, Watch
    from veltair.types import CoreSet

_PREPARED = np.dtype(
    [
        ("steps", np.uint64),
        ("rows", np.uint64),
        ("layers", np.int64),
        ("core_set", np.int64),
        ("crowded_core_set", np.int64),
    ]
)


class Runs(Protocol):
    """What it has of its `Worker`."""

    sequence: int
    cores: CoreSet

    def block(self, packed_key: bytes) -> BoundBlock:
        """All layers of a query, bound to its slot."""
        ...

    def move_to(self, cores: CoreSet) -> None:
        """Run on these cores from now on."""
        ...

    def resume(self, query: int, block: BoundBlock, layer: int) -> tuple[int, bool]:
        """Run the rest of a block that the cell has stopped before that layer, on what cores the cell says. Returns the
        layer reached, and whether it has told the engine of other cores."""
        ...


class _Why(IntEnum):
    """`claims.c`: why `attend` returned."""

    OVER = 0
    ENDED = 1  # the term is over with a claim that has run
    WAITED = 2
    UNPREPARED = 3
    STOPPED = 4  # before a layer: the cell has changed


class ClaimLoop(ctypes.Structure):
    """What `claims.c` runs claims with, and where it stopped."""

    _fields_ = (
        ("standing", ctypes.c_void_p),
        ("done", ctypes.c_void_p),
        ("wakes", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("sequence", ctypes.c_void_p),
        ("progress", ctypes.c_void_p),
        ("lines", ctypes.c_void_p),
        ("prepared", ctypes.c_void_p),
        ("patience_ns", ctypes.c_int64),
        ("core_set", ctypes.c_int64),
        ("known", ctypes.c_uint64),
        ("lanes", ctypes.c_uint32),
        ("places", ctypes.c_uint32),
        ("slots", ctypes.c_uint32),
        ("term", ctypes.c_uint32),
        ("window_ns", ctypes.c_int64),
        ("counted", ctypes.c_uint32),
        ("crowded", ctypes.c_uint32),
        ("unread", ctypes.c_uint32),
        ("begin_ns", ctypes.c_int64),
        ("layer", ctypes.c_int64),
        ("position", ctypes.c_uint32),
    )


class LentWorker:
    """Waits for claims and runs them, one at a time; each but the first of its kind without Python.

    ::

        lent = LentWorker(channel, cell, bell, standing, done, slots, watch, cores, worker)
        lent.attend(PATIENCE_NS)  # the order was to attend
    """

    def __init__(
        self,
        channel: Channel[ToWorker],
        cell: WorkerCell,
        bell: int,
        standing: StandingOrders,
        done: DoneQueries,
        slots: int,
        watch: Watch,
        cores: CoreSet,
        runs: Runs,
    ) -> None:
        """`slots`: of each tenant. `watch`: the cell's words. `cores`: all; short claims that come fast run on the last
        one, since the I/O threads and the engine are on the first, and go before them there."""
        from veltair.profiles.runtime import native

        self._channel, self._cell, self._bell = channel, cell, bell
        self._standing, self._done, self._runs, self._slots = standing, done, runs, slots
        self._attend = _attend()
        self._prepared = np.zeros(MOST_ORDERS * slots, _PREPARED)  # by the number of the order and the slot
        self._blocks: dict[int, BoundBlock] = {}  # those of the table, which has only their addresses
        self._orders: list[StandingOrder] = []  # that the table is for
        self._crowded_cores = cores[-1:]
        self._core_sets: dict[CoreSet, int] = {}  # their numbers
        self._lines = standing.lines()
        memory, lanes, places, wakes = done.memory
        self._loop = ClaimLoop(
            standing=standing.address,
            done=memory,
            wakes=wakes,
            run=native.address("run"),
            sequence=watch.sequence,
            progress=watch.progress,
            lines=ctypes.addressof(self._lines),
            prepared=array_address(self._prepared),
            lanes=lanes,
            places=places,
            slots=slots,
        )

    def attend(self, patience_ns: int) -> None:
        """Run what is claimed until the term of the last order has ended. `patience_ns`: without a claim, before it
        looks whether the engine is still there. Raises ChannelClosedError when it is not."""
        loop = self._loop
        loop.term, loop.patience_ns = self._cell.read_term(), patience_ns
        loop.unread = 1
        self._standing.begin_claims(self._lines)
        self._cell.publish_end(BlockEnd(ATTEND, 0, reported=False, begin_ns=0, end_ns=0), self._bell)
        while (why := self._run_claims()) != _Why.OVER:
            if why == _Why.WAITED:
                if self._channel.is_closed():
                    raise ChannelClosedError
            elif why == _Why.ENDED or self._run_claim(why):
                os.eventfd_write(self._bell, 1)
                break

    def forget(self) -> None:
        """Models come and go: no block that was prepared is run any more."""
        self._prepared[:] = 0
        self._blocks.clear()
        self._orders = []

    def _read_orders(self) -> None:
        """Those of a new term, once it is open: most are as before, and so are their blocks."""
        before, self._orders = self._orders, self._standing.orders()
        same = [number for number, order in enumerate(self._orders) if order in before[number : number + 1]]
        for number in set(range(len(before))) - set(same):
            slots = range(number * self._slots, (number + 1) * self._slots)
            self._prepared[slots.start : slots.stop] = 0
            for at in slots:
                self._blocks.pop(at, None)
        self._loop.unread = 0

    def _run_claims(self) -> _Why | Exception:
        self._loop.core_set = self._number(self._runs.cores)
        self._loop.known = self._runs.sequence
        try:
            return _Why(self._attend(ctypes.addressof(self._loop)))
        except Exception as error:  # whatever a kernel raises costs this query alone
            return error

    def _run_claim(self, why: _Why | Exception) -> bool:
        """See to the claim at which the native loop stopped. Returns whether the term has ended with it."""
        loop = self._loop
        claim = self._standing.claim(loop.position)
        query, done = claim.caller.query, None
        stop, reported = 0, False
        try:
            if isinstance(why, Exception):
                raise why
            number = claim.order * self._slots + claim.slot
            if why == _Why.UNPREPARED:
                if loop.unread:
                    self._read_orders()
                order = self._orders[claim.order]
                crowded_cores = self._crowded_cores if order.wait_ns else order.cores
                self._runs.move_to(crowded_cores if loop.crowded else order.cores)
                if number not in self._blocks:
                    key = BlockKey(order.tenant, 0, claim.slot, order.samples, order.versions)
                    self._prepare(number, self._runs.block(pack_key(key)), order, crowded_cores)
                return False  # the loop finds it again
            block = self._blocks[number]
            stop, reported = self._runs.resume(query, block, loop.layer)
            done = self._done if stop == block.stop else None
        except Exception as error:
            who = claim.caller.lane, claim.caller.place
            self._channel.send(KernelFailed(query, f"{type(error).__name__}: {error}", claimed_by=who))
        end = BlockEnd(query, stop, reported, loop.begin_ns, time.monotonic_ns())
        return self._standing.end(loop.term, loop.position, self._lines, end, done)

    def _prepare(self, number: int, block: BoundBlock, order: StandingOrder, crowded_cores: CoreSet) -> None:
        self._blocks[number] = block
        core_sets = self._number(order.cores), self._number(crowded_cores)
        self._prepared[number] = (*block.addresses, block.stop, *core_sets)

    def _number(self, cores: CoreSet) -> int:
        return self._core_sets.setdefault(cores, len(self._core_sets))


@cache
def _attend() -> Any:
    """The native loop. Raises VeltairError where it was not built."""
    from veltair.profiles.runtime.tvm_runtime import load_library

    return load_library(library_path("veltair.server.worker._claims"))["attend"]
