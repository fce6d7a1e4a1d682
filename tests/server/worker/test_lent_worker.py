"""`LentWorker`: what its native loop leaves to Python, and where claims run that come fast."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from running_daemon import until

from veltair.profiles.runtime.block_runner import BoundBlock, Watch
from veltair.server.ipc.block_orders import unpack_key
from veltair.server.ipc.channel import Channel
from veltair.server.ipc.done_queries import Caller, DoneQueries, create_done_queries
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.messages import KernelFailed, ToWorker
from veltair.server.ipc.standing_orders import Claim, StandingOrder, StandingOrders, create_standing_orders
from veltair.server.ipc.worker_cell import WorkerCell, cell_bytes, create_worker_cell
from veltair.server.worker.lent_worker import LentWorker
from veltair.types import CoreSet

SLOTS, PATIENCE_NS = 4, 10_000_000
IN_TIME = 1 << 62  # when a claim was made that no machine is too slow for
SHORT, LONG = 0, 1  # tenants
FIRST, BOTH, LAST = (0,), (0, 1), (1,)
ORDERS = [StandingOrder(SHORT, 1, (), FIRST, wait_ns=10_000_000), StandingOrder(LONG, 1, (), BOTH)]


@dataclass
class NoLayers:
    """A block of no layer, which the native loop runs to its end."""

    stop: int = 0
    rows: Any = field(default_factory=lambda: np.zeros(1, np.int32))

    @property
    def addresses(self) -> tuple[int, int]:
        return self.rows.ctypes.data, self.rows.ctypes.data


@dataclass
class Scripted:
    """A worker that notes what it is asked for."""

    sequence: int = 0
    cores: CoreSet = ()
    moves: list[CoreSet] = field(default_factory=list)
    prepared: list[tuple[int, int]] = field(default_factory=list)
    failure: Exception | None = None

    def block(self, packed_key: bytes) -> BoundBlock:
        if self.failure is not None:
            raise self.failure
        key = unpack_key(packed_key)
        self.prepared.append((key.tenant, key.slot))
        return cast(BoundBlock, NoLayers())

    def move_to(self, cores: CoreSet) -> None:
        if cores != self.cores:
            self.moves.append(cores)
        self.cores = cores

    def resume(self, query: int, block: BoundBlock, layer: int) -> tuple[int, bool]:
        raise AssertionError("nothing stops a block of no layer")


class Term:
    """A term in which a thread of this process is the worker."""

    def __init__(self) -> None:
        wake, bell = (os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2))
        memory, standing, cell = create_done_queries(1, 2 * SLOTS), create_standing_orders(1), None
        size = cell_bytes(1, 1)
        shared = create_worker_cell(size)
        self.cell, cell = WorkerCell(shared), WorkerCell(shared)
        self.done = DoneQueries(LaneDescriptors(-1, 0, -1, (wake,), memory, 2 * SLOTS))
        self.standing, self.worker = StandingOrders(standing, 1), Scripted()
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.engine: Channel[KernelFailed] = Channel(other, KernelFailed)
        channel: Channel[ToWorker] = Channel(own, ToWorker)
        kept = SLOTS, Watch(*cell.word_addresses()), BOTH
        self.lent = LentWorker(channel, cell, bell, self.standing, self.done, *kept, self.worker)
        self.query, self.ended = 0, Event()
        self._descriptors = wake, bell, memory, standing, shared
        self._sockets = own, other
        self._workers_cell, self.number = cell, 0
        self.begin(ORDERS)

    def begin(self, orders: list[StandingOrder]) -> None:
        """The term after the one that has ended, with these orders."""
        self.number += 1
        self.cell.attend(self.number)
        assert self._workers_cell.wait_for_order(0)
        self._thread = Thread(target=self._attend)
        self._thread.start()
        until("it to attend", lambda: self.cell.take_end() is not None)
        self.standing.write(orders)
        self.standing.open(self.number)

    def _attend(self) -> None:
        self.lent.attend(PATIENCE_NS)
        self.ended.set()

    def ask(self, tenant: int, slot: int = 0, taken_ns: int = IN_TIME) -> None:
        """A query, and its end."""
        self.query += 1
        claim = Claim(Caller(self.query, taken_ns, lane=0, place=tenant * SLOTS + slot), 0, slot)
        until("it to be free", lambda: self.standing.ask(0, claim, tenant, 1))
        until("its end", lambda: claim.caller.query in self.done.take(lane=0)["query"].tolist())

    def ask_fast(self, times: int) -> None:
        give_up = time.monotonic() + 10
        for _ in range(times):
            self.query += 1
            while not self.standing.ask(0, Claim(Caller(self.query, IN_TIME, 0, 0), 0, 0), SHORT, 1):
                assert time.monotonic() < give_up

    def end(self) -> None:
        self.standing.withdraw(self.number)
        assert self.ended.wait(10)
        self._thread.join()
        self.ended.clear()

    def close(self) -> None:
        self.end()
        for each in self._sockets:
            each.close()
        for descriptor in self._descriptors:
            os.close(descriptor)


@pytest.fixture
def term() -> Iterator[Term]:
    made = Term()
    yield made
    made.close()


def test_a_block_is_prepared_once_for_each_order_and_slot(term: Term) -> None:
    for _ in range(3):
        term.ask(SHORT, slot=0)
        term.ask(SHORT, slot=2)
    term.ask(LONG, slot=0)
    assert term.worker.prepared == [(SHORT, 0), (SHORT, 2), (LONG, 0)]
    assert term.worker.moves == [FIRST, BOTH]


def test_what_is_prepared_lasts_as_long_as_its_order(term: Term) -> None:
    def ask_each() -> None:
        for tenant, slot in ((SHORT, 0), (SHORT, 2), (LONG, 0)):
            term.ask(tenant, slot)

    ask_each()
    term.end()
    term.worker.prepared.clear()
    term.begin(ORDERS)
    ask_each()
    assert term.worker.prepared == []
    term.end()
    term.begin([msgspec.structs.replace(ORDERS[0], wait_ns=1_000_000), ORDERS[1]])
    ask_each()
    assert term.worker.prepared == [(SHORT, 0), (SHORT, 2)]
    term.end()
    term.begin([ORDERS[1]])
    term.ask(LONG, 0)
    assert term.worker.prepared == [(SHORT, 0), (SHORT, 2), (LONG, 0)]  # its number is another one
    term.end()
    term.worker.prepared.clear()
    term.lent.forget()
    term.begin([ORDERS[1]])
    term.ask(LONG, 0)
    assert term.worker.prepared == [(LONG, 0)]


def test_claims_that_come_fast_run_away_from_the_first_core_until_they_no_longer_do(term: Term) -> None:
    term.ask(SHORT)
    assert term.worker.moves == [FIRST]

    def moves() -> bool:
        term.ask_fast(500)  # a machine that is busy lets none come fast for a while
        return LAST in term.worker.moves

    until("it to move", moves)
    term.ask(LONG)  # it is not moved: it has been given these cores
    assert term.worker.moves[-1] == BOTH
    for _ in range(2 * 64):
        term.ask(SHORT)
        time.sleep(0.001)  # the pace of a client that is slow
    assert term.worker.moves[-1] == FIRST


def test_claims_that_wait_for_those_who_go_before_them_run_elsewhere(term: Term) -> None:
    term.ask(SHORT)
    term.ask(SHORT, taken_ns=time.monotonic_ns() - 10_000_000)
    assert term.worker.moves == [FIRST, LAST]


def test_a_claim_that_cannot_be_prepared_fails_alone(term: Term) -> None:
    term.worker.failure = MemoryError("no room")
    assert term.standing.ask(0, Claim(Caller(9, 0, lane=0, place=1), 0, 1), SHORT, 1)
    until("it to be free", lambda: term.standing.running(term.number) is None)
    message = term.engine.receive()
    assert message == KernelFailed(9, "MemoryError: no room", claimed_by=(0, 1))
    assert term.done.take(lane=0)["query"].tolist() == []  # the engine tells of it
    term.worker.failure = None
    term.ask(SHORT, slot=1)


def test_claims_that_would_begin_late_are_refused_while_others_wait(term: Term) -> None:
    term.end()
    term.begin([msgspec.structs.replace(ORDERS[0], late_us=100_000_000), ORDERS[1]])
    now_ns, begun, go_on = time.monotonic_ns(), Event(), Event()

    def hold(cores: CoreSet) -> None:
        begun.set()
        assert go_on.wait(10)
        term.worker.cores = cores

    term.worker.move_to = hold  # type: ignore[method-assign]
    for slot, age_s in enumerate((0, 101, 99, 1000)):
        caller = Caller(slot + 1, now_ns, lane=0, place=SHORT * SLOTS + slot)
        claim = Claim(caller, 0, slot, arrival_ns=now_ns - age_s * 10**9)
        assert term.standing.ask(0, claim, SHORT, 1)
        assert begun.wait(10)  # the first one is not prepared
    go_on.set()
    found: dict[int, bool] = {}

    def all_told() -> bool:
        found.update({int(each["query"]): bool(each["refused"]) for each in term.done.take(lane=0)})
        return len(found) == 4

    until("their ends", all_told)
    assert found == {1: False, 2: True, 3: False, 4: False}  # nobody waits for the last one
    assert [slot for _, slot in term.worker.prepared] == [0, 2, 3]  # nothing for who is refused
