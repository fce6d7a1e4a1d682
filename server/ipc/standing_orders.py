"""`StandingOrders`: shared memory in which I/O threads order blocks of a worker by themselves, without the engine.

A query that comes alone needs no decision that the last one like it did not need, and one that runs for less time than
a decision takes can as well wait until the one before it has ended. Every wake-up of the engine costs more than such
queries' kernels. So while no query is in flight, the engine lends out a worker with the orders that it would give, one
for each tenant and number of samples. A *term* goes like this:

1. The engine has a worker attend (`WorkerCell.attend`), which answers at once, writes orders and opens the state.
2. An I/O thread puts a claim into its ring; so does the engine for queries that arrived while it lent the worker.
   Where the state is open, it claims the state for it and wakes the worker. The worker runs the query, tells the
   thread of its end past the engine (`DoneQueries`), and goes on with the next claim that waits, or opens the state
   again. Where the state is claimed, a claim may wait if its order says so (`wait_ns`); else the thread sends its
   query to the engine as ever.
3. The engine withdraws its orders before it decides anything, and takes the claims that wait: they are queries that
   have arrived. Where none runs, the worker is its own again at once; else that query becomes one like any other, on a
   worker like any other (`QueryRuns`): the cell can move it and cancel it, and at its end the worker ends the term,
   writes how the query ended, and rings the bell.

The state is one word, in which the worker waits as a futex. It says which term it is and which claim runs, so that
nobody mistakes one for another. The functions are those of `server/wire/standing_orders.c`, which the I/O threads and
the worker use themselves.
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

from veltair.errors import VeltairError
from veltair.machine.native_library import native_library
from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.done_queries import Caller, DoneQueries
from veltair.server.ipc.worker_cell import pack_cores, unpack_cores
from veltair.types import DEFAULT_PRIORITY_LEVEL, CoreSet

MOST_ORDERS, MOST_LAYERS, CLAIMS = 16, 219, 256  # the last: places of a ring
_TERM, _TERMS, _POSITION, _WHAT = 17, 1 << 15, 2, 3
_CLOSED, _OPEN, _CLAIMED, _WITHDRAWN = range(4)  # the lowest two bits of the state
_RUNS = (_CLAIMED, _WITHDRAWN)
_COUNT_BYTES, _ORDER_BYTES = 64, 1024
_CLAIM = Struct("<QqIIIIqqi12x")  # query, when it was sent, lane, place, order, slot, arrival, deadline, priority level
_COUNT, _ORDER = Struct("<I"), Struct("<iiIII128s")
_END_AT, _END = 128, Struct("<IIIIqqq")
Lines = ctypes.Array[ctypes.c_char]
NO_CLAIM, TERM_OVER = -1, -2  # in place of a claim's position


class BrokenOrdersError(VeltairError):
    """The memory says what no worker writes that does as it was told."""


class StandingOrder(msgspec.Struct, frozen=True):
    """Run all layers of a tenant's model for one query: `StandingOrder(0, samples=1, versions=(0, 2), cores=(0,))`."""

    tenant: int  # its number
    samples: int
    versions: tuple[int, ...]  # of each layer
    cores: CoreSet
    wait_ns: int = 0  # what the claims of its tenant together may take; 0: it runs at once or not at all
    late_us: int = 0  # if others wait, it is refused where it would begin later, or has no room; 0: it never is


class Claim(NamedTuple):
    """A query that an I/O thread has ordered: `Claim(Caller(7, taken_ns=100, lane=0, place=12), order=0, slot=4)`."""

    caller: Caller
    order: int  # its number
    slot: int
    arrival_ns: int = 0
    deadline_ns: int = 0  # 0: none
    priority_level: int = DEFAULT_PRIORITY_LEVEL


def create_standing_orders(lanes: int) -> int:
    """New memory for that many I/O threads, closed. Returns its descriptor."""
    fd = os.memfd_create("veltair-standing", os.MFD_CLOEXEC)
    os.truncate(fd, _functions().standing_orders_bytes(lanes))
    return fd


class StandingOrders:
    """Maps the memory behind a descriptor of `create_standing_orders`.

    >>> standing = StandingOrders(create_standing_orders(lanes=1), lanes=1)
    >>> standing.write([StandingOrder(3, samples=1, versions=(0, 2), cores=(0,), wait_ns=5_000_000)])
    >>> standing.open(term=1)
    >>> lines = standing.lines()
    >>> for query in (7, 8, 9):
    ...     claim = Claim(Caller(query, taken_ns=100, lane=0, place=query), order=0, slot=query)
    ...     assert standing.ask(0, claim, tenant=3, samples=1)
    >>> position = standing.next_claim(term=1, patience_ns=0)
    >>> standing.claim(position).slot, standing.order(standing.claim(position).order).versions
    (7, (0, 2))
    >>> end = BlockEnd(query=7, stop=2, reported=False, begin_ns=100, end_ns=350)
    >>> standing.end(1, position, lines, end, done=None)
    False
    >>> standing.withdraw(term=1).slot, [claim.slot for claim in standing.take_waiting(term=1)]  # 8 runs
    (8, [9])
    """

    def __init__(self, fd: int, lanes: int) -> None:
        self.lanes = lanes
        self._functions = _functions()
        self._page = mmap.mmap(fd, self._functions.standing_orders_bytes(lanes))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self._count_at = self._functions.standing_orders_at(lanes)
        self._orders_at = self._count_at + _COUNT_BYTES
        self._term = 0  # the engine: the last one that it opened or closed
        self._left: int | None = self._closed  # and the state that it left; None: the term is open

    # The engine's side

    def write(self, orders: Sequence[StandingOrder]) -> None:
        """What may be claimed, while the state is closed: MOST_ORDERS at most, of MOST_LAYERS at most."""
        for number, order in enumerate(orders):
            at = self._orders_at + number * _ORDER_BYTES
            layers = len(order.versions)
            what = order.tenant, order.samples, layers, order.wait_ns, order.late_us
            _ORDER.pack_into(self._page, at, *what, pack_cores(order.cores))
            versions = np.array(order.versions, "<u4").tobytes()
            self._page[at + _ORDER.size : at + _ORDER.size + len(versions)] = versions
        _COUNT.pack_into(self._page, self._count_at, len(orders))

    def open(self, term: int) -> None:
        """The worker of this term attends: I/O threads may claim. Raises BrokenOrdersError where the state is not that
        of the term before."""
        if not self._functions.open_orders(self.address, self._term, term):
            raise self._error(self._functions.orders_state(self.address))
        self._term, self._left = term, None

    def withdraw(self, term: int) -> Claim | None:
        """No more claims run. Returns the one that does; at its end the worker ends the term, and rings. Raises
        BrokenOrdersError where the state is of another term, or names no claim."""
        state = self._functions.withdraw_orders(self.address, self.lanes, term)
        if self._is_broken(state):
            raise self._error(state)
        self._left = state
        return self._running(state, term)

    def take_waiting(self, term: int) -> list[Claim]:
        """The claims that wait in this term, which has been withdrawn: nobody else sees to them from here on."""
        packed = ctypes.create_string_buffer((self.lanes + 1) * CLAIMS * _CLAIM.size)
        count = self._functions.take_waiting(self.address, self.lanes, term, packed)
        return [_unpack_claim(packed, number * _CLAIM.size) for number in range(count)]

    def close(self, term: int) -> bool:
        """End a term that was not opened, or whose worker is gone. Returns whether the state had been none that `check`
        finds right: then threads may have claimed by it, and nobody runs those claims."""
        was_broken = self._is_broken(self._functions.close_orders(self.address, term))
        self._term, self._left = term, term << _TERM | _CLOSED
        return was_broken

    def ended(self, term: int) -> bool:
        """Whether nobody runs a query of this term, or will."""
        state: int = self._functions.orders_state(self.address)
        return state == term << _TERM | _CLOSED

    def running(self, term: int) -> Claim | None:
        """The query that has been claimed and has not ended."""
        return self._running(self._functions.orders_state(self.address), term)

    def each_ns(self) -> int:
        """What a claim takes on average, beginning with the end of the one before it; 0: none has run."""
        return int(self._functions.claim_pace_ns(self.address))

    def end_of(self, query: int) -> BlockEnd:
        """How the query ended with which the last term has ended."""
        stop, reported, refused, _, begin_ns, end_ns, told_ns = _END.unpack_from(self._page, _END_AT)
        return BlockEnd(query, stop, bool(reported), begin_ns, end_ns, told_ns, bool(refused))

    def check(self) -> None:
        """Raises BrokenOrdersError where the state is none that follows what the engine did last."""
        state = self._functions.orders_state(self.address)
        if self._is_broken(state):
            raise self._error(state)

    def _is_broken(self, state: int) -> bool:
        if self._left is not None:
            return state not in (self._left, self._closed)
        return state >> _TERM != self._term or (state & _WHAT in _RUNS and not self._is_place(_position(state)))

    @property
    def _closed(self) -> int:
        return self._term << _TERM | _CLOSED

    def _error(self, state: int) -> BrokenOrdersError:
        return BrokenOrdersError(f"the state of term {self._term} is {state:#x}")

    def _running(self, state: int, term: int) -> Claim | None:
        runs = state >> _TERM == term and state & _WHAT in _RUNS and self._is_place(_position(state))
        return self.claim(_position(state)) if runs else None

    def _is_place(self, position: int) -> bool:
        return position < (self.lanes + 1) * CLAIMS

    # The worker's side, as claims.c does it for most

    def lines(self) -> Lines:
        """What `end` needs of a worker: in which order claims wait. It is for one term."""
        lines = ctypes.create_string_buffer(self._functions.claim_lines_bytes())
        self.begin_claims(lines)
        return lines

    def begin_claims(self, lines: Lines) -> None:
        """Before the first claim of another term."""
        self._functions.begin_claims(self.address, self.lanes, lines)

    def next_claim(self, term: int, patience_ns: int) -> int:
        """Sleep until a query is to run or the term has ended. Returns the claim's position, TERM_OVER at the end, and
        NO_CLAIM when there was neither after that time or a signal."""
        return int(self._functions.next_claim(self.address, term, patience_ns))

    def claim(self, position: int) -> Claim:
        """What is or was claimed there. Raises BrokenOrdersError where nothing can be."""
        if not self._is_place(position):
            raise BrokenOrdersError(f"there is no claim {position}")
        return _unpack_claim(
            ctypes.string_at(self._functions.claim_at(self.address, self.lanes, position), _CLAIM.size)
        )

    def order(self, number: int) -> StandingOrder:
        """One of those that were written."""
        at = self._orders_at + number * _ORDER_BYTES
        tenant, samples, layers, *waits, cores = _ORDER.unpack_from(self._page, at)
        versions = unpack_from(f"<{layers}I", self._page, at + _ORDER.size)
        return StandingOrder(tenant, samples, versions, unpack_cores(cores), *waits)

    def orders(self) -> list[StandingOrder]:
        """All that were written, while they are open."""
        (count,) = _COUNT.unpack_from(self._page, self._count_at)
        return [self.order(number) for number in range(min(count, MOST_ORDERS))]

    def end(self, term: int, position: int, lines: Lines, end: BlockEnd, done: DoneQueries | None) -> bool:
        """The claim has ended: the next one that waits is to run, or another may come. `done`: by which its thread is
        told; None: the engine tells. Returns whether the term has ended with it: then the engine waits for the bell."""
        memory, _, places, wakes = (None, 0, 0, None) if done is None else done.memory
        where = self.address, self.lanes, term, position, lines, memory, places, wakes
        how = _END.pack(end.stop, end.reported, end.refused, 0, end.begin_ns, end.end_ns, 0)
        return bool(self._functions.end_claim_at(*where, how))

    # The I/O threads' side, as they do it; the engine's, too, for queries that had to wait until it had lent a worker

    def ask(self, ring: int, claim: Claim, tenant: int, samples: int) -> bool:
        """Claim for this query; the number of its order is found. `ring`: the thread's number; the engine's comes last.
        Returns False where that cannot be: the engine has to decide."""
        packed = _CLAIM.pack(*claim.caller, *claim[1:])
        return bool(self._functions.claim_order(self.address, self.lanes, ring, packed, tenant, samples))


def _position(state: int) -> int:
    """Of the claim that runs."""
    return (state & ((1 << _TERM) - 1)) >> _POSITION


def _unpack_claim(packed: bytes | ctypes.Array[ctypes.c_char], at: int = 0) -> Claim:
    query, taken_ns, lane, place, *rest = _CLAIM.unpack_from(packed, at)
    return Claim(Caller(query, taken_ns, lane, place), *rest)


def term_after(term: int) -> int:
    """The number of the next term.

    >>> term_after(0), term_after((1 << 15) - 1)
    (1, 0)
    """
    return (term + 1) % _TERMS


@cache
def _functions() -> Any:
    library = native_library("veltair.server.ipc._standing_orders")
    pointer, number, flag, time = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_int64
    end_arguments = pointer, number, number, number, pointer, pointer, number, pointer, ctypes.c_char_p
    for name, result, *arguments in (
        ("standing_orders_bytes", ctypes.c_uint64, number),
        ("standing_orders_at", ctypes.c_uint64, number),
        ("claim_order", flag, pointer, number, number, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32),
        ("claim_at", pointer, pointer, number, number),
        ("open_orders", flag, pointer, number, number),
        ("withdraw_orders", number, pointer, number, number),
        ("take_waiting", number, pointer, number, number, pointer),
        ("claim_pace_ns", number, pointer),
        ("close_orders", number, pointer, number),
        ("orders_state", number, pointer),
        ("claim_lines_bytes", ctypes.c_uint64),
        ("begin_claims", None, pointer, number, pointer),
        ("next_claim", time, pointer, number, time),
        ("end_claim_at", flag, *end_arguments),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, tuple(arguments)
    return library
