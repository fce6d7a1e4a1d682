"""`StandingOrders`: shared memory in which I/O threads order blocks of a worker by themselves, while nothing else runs.

A query that comes alone needs no decision that the last one like it did not need, and every wake-up of the engine costs
it more than the query's kernels. So while no query is in flight, the engine lends out a worker with the orders that it
would give, one for each tenant and number of samples. A *term* goes like this:

1. The engine has a worker attend (`WorkerCell.attend`), which answers at once, writes orders and opens the state.
2. An I/O thread claims the state for a query and wakes the worker, which runs the query, tells the thread of its end
   past the engine (`DoneQueries`), and opens the state again. One query runs at a time; a thread that finds it claimed
   sends its query to the engine as ever.
3. The engine withdraws its orders before it decides anything. Where no query runs, the worker is its own again at once;
   else the query becomes one like any other, on a worker like any other (`QueryRuns`): the cell can move it and cancel
   it, and at its end the worker ends the term, writes how the query ended, and rings the bell.

The state is one word, in which the worker waits as a futex. It says which term it is, so that nobody mistakes one for
another. The functions are those of `server/wire/standing_orders.c`, which the I/O threads use themselves.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from functools import cache
from struct import Struct, unpack_from
from typing import Any, NamedTuple

import msgspec
import numpy as np

from veltair.machine.native_library import native_library
from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.done_queries import Caller, DoneQueries, pack_callers
from veltair.server.ipc.worker_cell import pack_cores, unpack_cores
from veltair.types import CoreSet

MOST_ORDERS, MOST_LAYERS = 16, 220
_TERM, _TERMS, _WHAT = 8, 1 << 24, 0xFF
CLOSED, OPEN, CLAIMED = range(3)  # the lowest byte of the state; from CLAIMED on by the I/O thread
_CLAIMS_AT, _CLAIM_BYTES, _COUNT_BYTES, _ORDER_BYTES = 256, 64, 64, 1024
_CLAIM = Struct("<QqIIII")  # query, when it was sent, lane, place, number of the order, slot
_COUNT, _ORDER = Struct("<I"), Struct("<iiI4x128s")
_END_AT, _END = 192, Struct("<IIqqq")


class StandingOrder(msgspec.Struct, frozen=True):
    """Run all layers of a tenant's model for one query: `StandingOrder(0, samples=1, versions=(0, 2), cores=(0,))`."""

    tenant: int  # its number
    samples: int
    versions: tuple[int, ...]  # of each layer
    cores: CoreSet


class Claim(NamedTuple):
    """A query that an I/O thread has ordered.

    ::

        claim = standing.claim(lane)
        claim.caller.query, claim.order
    """

    caller: Caller
    order: int  # its number
    slot: int


def create_standing_orders(lanes: int) -> int:
    """New memory for that many I/O threads, closed. Returns its descriptor."""
    fd = os.memfd_create("veltair-standing", os.MFD_CLOEXEC)
    os.truncate(fd, _functions().standing_orders_bytes(lanes))
    return fd


class StandingOrders:
    """Maps the memory behind a descriptor of `create_standing_orders`.

    >>> standing = StandingOrders(create_standing_orders(lanes=1), lanes=1)
    >>> standing.write([StandingOrder(3, samples=1, versions=(0, 2), cores=(0,))])
    >>> standing.open(term=1)
    >>> standing.ask(Caller(query=7, taken_ns=100, lane=0, place=12), tenant=3, samples=1, slot=4)
    True
    >>> lane = standing.wait(term=1, patience_ns=0)
    >>> standing.claim(lane).slot, standing.order(standing.claim(lane).order).versions
    (4, (0, 2))
    >>> standing.withdraw(term=1)  # it runs
    False
    >>> standing.end(1, lane, BlockEnd(query=7, stop=2, reported=False, begin_ns=100, end_ns=350), done=None)
    True
    >>> standing.ended(term=1), standing.end_of(query=7).stop
    (True, 2)
    """

    def __init__(self, fd: int, lanes: int) -> None:
        self._lanes = lanes
        self._functions = _functions()
        self._page = mmap.mmap(fd, self._functions.standing_orders_bytes(lanes))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._count_at = _CLAIMS_AT + _CLAIM_BYTES * lanes
        self._orders_at = self._count_at + _COUNT_BYTES

    # The engine's side

    def write(self, orders: Sequence[StandingOrder]) -> None:
        """What may be claimed, while the state is closed: MOST_ORDERS at most, of MOST_LAYERS at most."""
        for number, order in enumerate(orders):
            at = self._orders_at + number * _ORDER_BYTES
            layers = len(order.versions)
            _ORDER.pack_into(self._page, at, order.tenant, order.samples, layers, pack_cores(order.cores))
            versions = np.array(order.versions, "<u4").tobytes()
            self._page[at + _ORDER.size : at + _ORDER.size + len(versions)] = versions
        _COUNT.pack_into(self._page, self._count_at, len(orders))

    def open(self, term: int) -> None:
        """The worker of this term attends: I/O threads may claim."""
        self._functions.open_orders(self.address, term)

    def withdraw(self, term: int) -> bool:
        """No query may be claimed any more. Returns whether none runs; else the worker ends the term, and rings."""
        return bool(self._functions.withdraw_orders(self.address, term))

    def close(self, term: int) -> None:
        """End a term that was not opened, or whose worker is gone."""
        self._functions.close_orders(self.address, term)

    def ended(self, term: int) -> bool:
        """Whether nobody runs a query of this term, or will."""
        return self._state() == term << _TERM | CLOSED

    def running(self, term: int) -> Claim | None:
        """The query that has been claimed and has not ended."""
        state = self._state()
        claimed = state >> _TERM == term and state & _WHAT >= CLAIMED
        return self.claim((state & _WHAT) - CLAIMED) if claimed else None

    def end_of(self, query: int) -> BlockEnd:
        """How the query ended with which the last term has ended."""
        stop, reported, *times = _END.unpack_from(self._page, _END_AT)
        return BlockEnd(query, stop, bool(reported), *times)

    def _state(self) -> int:
        state: int = self._functions.orders_state(self.address)
        return state

    # The worker's side

    def wait(self, term: int, patience_ns: int) -> int | None:
        """Sleep until a query is claimed or the term has ended. Returns the number of the I/O thread that has claimed
        one, -1 at the end, and None when there was neither after that time or a signal."""
        state = self._functions.wait_for_claim(self.address, term, patience_ns)
        if state >> _TERM != term:  # not opened yet, or there has been another since
            return None if (term - (state >> _TERM)) % _TERMS < _TERMS // 2 else -1
        if state & _WHAT == OPEN:
            return None
        return int(state & _WHAT) - CLAIMED if state & _WHAT >= CLAIMED else -1

    def claim(self, lane: int) -> Claim:
        """What the I/O thread has claimed last."""
        *caller, order, slot = _CLAIM.unpack_from(self._page, _CLAIMS_AT + _CLAIM_BYTES * lane)
        return Claim(Caller(*caller), order, slot)

    def order(self, number: int) -> StandingOrder:
        """One of those that were written."""
        at = self._orders_at + number * _ORDER_BYTES
        tenant, samples, layers, cores = _ORDER.unpack_from(self._page, at)
        versions = unpack_from(f"<{layers}I", self._page, at + _ORDER.size)
        return StandingOrder(tenant, samples, versions, unpack_cores(cores))

    def end(self, term: int, lane: int, end: BlockEnd, done: DoneQueries | None) -> bool:
        """The claim has ended, and another may come. `done`: by which its thread is told; None: the engine tells.
        Returns whether the term has ended with it: then the engine waits for the bell."""
        where = (None, 0, 0, None) if done is None else done.memory
        how = end.stop, end.reported, end.begin_ns, end.end_ns
        return bool(self._functions.end_claim(self.address, term, lane, *where, *how))

    # The I/O threads' side, as they do it

    def ask(self, caller: Caller, tenant: int, samples: int, slot: int) -> bool:
        """Claim for this query. Returns False where that cannot be: the engine has to decide."""
        packed = pack_callers([caller])
        return bool(self._functions.claim_order(self.address, self._lanes, packed, tenant, samples, slot))


def term_after(term: int) -> int:
    """The number of the next term.

    >>> term_after(0), term_after((1 << 24) - 1)
    (1, 0)
    """
    return (term + 1) % _TERMS


@cache
def _functions() -> Any:
    library = native_library("veltair.server.ipc._standing_orders")
    pointer, number, flag, time = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_int64
    for name, result, *arguments in (
        ("standing_orders_bytes", ctypes.c_uint64, number),
        ("claim_order", flag, pointer, number, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, number),
        ("open_orders", None, pointer, number),
        ("withdraw_orders", flag, pointer, number),
        ("close_orders", None, pointer, number),
        ("orders_state", number, pointer),
        ("wait_for_claim", number, pointer, number, time),
        ("end_claim", flag, pointer, number, number, pointer, number, number, pointer, number, flag, time, time),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, tuple(arguments)
    return library
