"""Standing orders: who may claim when, and that no term ends with a query that nobody ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from threading import Event, Thread

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.done_queries import Caller, DoneQueries, create_done_queries
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.standing_orders import (
    MOST_LAYERS,
    MOST_ORDERS,
    StandingOrder,
    StandingOrders,
    create_standing_orders,
    term_after,
)

LANES, PLACES, TERMS = 3, 8, 1 << 24
PATIENCE_NS, ROUNDS = 1_000_000_000, 400
ORDERS = [StandingOrder(tenant, samples, (tenant, samples), (0, 9)) for tenant in (0, 3) for samples in (1, 2)]


def shared(lanes: int = LANES) -> StandingOrders:
    descriptor = create_standing_orders(lanes)
    try:
        return StandingOrders(descriptor, lanes)
    finally:
        os.close(descriptor)


@pytest.fixture
def done() -> Iterator[DoneQueries]:
    wakes = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(LANES))
    memory = create_done_queries(LANES, PLACES)
    yield DoneQueries(LaneDescriptors(-1, 0, -1, wakes, memory, PLACES))
    for descriptor in (*wakes, memory):
        os.close(descriptor)


class TermMachine(RuleBasedStateMachine):
    """One worker, the engine and three threads in one process, one step after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.standing = shared()
        self.standing.write(ORDERS)
        self.term, self.opened, self.withdrawn = TERMS - 3, False, False  # it begins again with 0
        self.standing.close(self.term - 1)
        self.runs: int | None = None  # the thread that has claimed
        self.query = 0

    @precondition(lambda self: not self.opened)
    @rule()
    def opens(self) -> None:
        self.standing.open(self.term)
        self.opened, self.withdrawn = True, False

    @rule(lane=st.integers(0, LANES - 1), tenant=st.sampled_from([0, 1, 3]), samples=st.integers(1, 3))
    def claims(self, lane: int, tenant: int, samples: int) -> None:
        self.query += 1
        known = any((order.tenant, order.samples) == (tenant, samples) for order in ORDERS)
        free = self.opened and not self.withdrawn and self.runs is None
        caller = Caller(self.query, self.query + 1, lane, place=self.query % PLACES)
        assert self.standing.ask(caller, tenant, samples, slot=5) == (known and free)
        if known and free:
            self.runs = lane
            claim = self.standing.claim(lane)
            assert (claim.caller, claim.slot) == (caller, 5)
            order = self.standing.order(claim.order)
            assert (order.tenant, order.samples) == (tenant, samples)

    @precondition(lambda self: self.opened)
    @rule()
    def withdraws(self) -> None:
        assert self.standing.withdraw(self.term) == (self.runs is None)
        self.withdrawn = True
        if self.runs is None:
            self._ended()

    @precondition(lambda self: self.runs is not None)
    @rule()
    def ends(self) -> None:
        assert self.runs is not None
        end = BlockEnd(self.query, stop=2, reported=True, begin_ns=3, end_ns=self.query)
        over = self.standing.end(self.term, self.runs, end, done=None)
        assert over == self.withdrawn
        assert self.standing.end_of(self.query) == end
        self.runs = None
        if over:
            self._ended()

    @rule()
    def dies(self) -> None:
        self.standing.close(self.term)
        self.runs = None
        self._ended()

    def _ended(self) -> None:
        assert self.standing.ended(self.term)
        assert self.standing.wait(self.term, patience_ns=0) == -1
        self.term, self.opened = term_after(self.term), False

    @invariant()
    def everybody_sees_the_same(self) -> None:
        running = self.standing.running(self.term)
        assert (running is None) == (self.runs is None)
        assert self.standing.wait(self.term, patience_ns=0) == self.runs  # None: it goes on waiting
        assert self.standing.wait(term_after(self.term), patience_ns=0) is None  # its worker may be early
        if self.opened:  # one of a term before has missed its end
            assert self.standing.wait((self.term - 1) % TERMS, patience_ns=PATIENCE_NS) == -1


TestTerms = TermMachine.TestCase


def test_orders_come_out_as_they_went_in() -> None:
    generator = np.random.default_rng(0)
    orders = [
        StandingOrder(
            int(generator.integers(1 << 30)),
            int(generator.integers(1 << 30)),
            tuple(generator.integers(1 << 32, size=layers).tolist()),
            tuple(sorted(set(generator.integers(1024, size=layers).tolist()))),
        )
        for layers in np.linspace(1, MOST_LAYERS, MOST_ORDERS, dtype=int).tolist()
    ]
    standing = shared()
    standing.write(orders)
    assert [standing.order(number) for number in range(len(orders))] == orders


def test_an_end_is_told_to_the_thread_that_claimed(done: DoneQueries) -> None:
    standing = shared()
    standing.write(ORDERS)
    standing.open(term=1)
    assert standing.ask(Caller(query=7, taken_ns=100, lane=2, place=6), tenant=3, samples=2, slot=6)
    before_ns = time.monotonic_ns()
    assert not standing.end(1, 2, BlockEnd(7, stop=2, reported=False, begin_ns=110, end_ns=130), done)
    [told] = done.take(lane=2)
    times = ("query", "taken_ns", "begin_ns", "end_ns", "execute_ns")
    assert [int(told[name]) for name in times] == [7, 100, 110, 130, 20]
    assert before_ns <= told["ended_ns"] <= time.monotonic_ns()
    assert standing.end_of(7).told_ns == told["ended_ns"]


def test_every_claim_is_run_once_however_terms_come_and_go(done: DoneQueries) -> None:
    """Three threads claim, a worker runs, and an engine opens and withdraws, all as fast as they can."""
    standing, over, rang = shared(), Event(), Event()
    standing.write(ORDERS)
    claimed: list[list[int]] = [[], [], []]
    ran: list[int] = []
    taken_over: list[int] = []
    terms: list[int] = []

    def claim(lane: int) -> None:
        query = lane
        while not over.is_set():
            query += LANES
            if standing.ask(Caller(query, 0, lane, place=lane), tenant=0, samples=1, slot=lane):
                claimed[lane].append(query)

    def attend() -> None:
        for term in range(1, ROUNDS + 1):
            ended = False
            while not ended and (lane := standing.wait(term, PATIENCE_NS // 100)) != -1:
                if lane is not None:
                    query = standing.claim(lane).caller.query
                    ran.append(query)
                    end = BlockEnd(query, 2, reported=False, begin_ns=0, end_ns=0)
                    ended = standing.end(term, lane, end, done)
                elif over.is_set():  # the test has failed
                    return
            terms.append(term)
            rang.set()

    threads = [Thread(target=claim, args=(lane,)) for lane in range(LANES)]
    worker = Thread(target=attend)
    for thread in (*threads, worker):
        thread.start()
    try:
        for term in range(1, ROUNDS + 1):
            rang.clear()
            before = sum(map(len, claimed))
            standing.open(term)
            give_up = time.monotonic() + 60
            while sum(map(len, claimed)) == before:
                assert time.monotonic() < give_up
            if not standing.withdraw(term) and (found := standing.running(term)):
                taken_over.append(found.caller.query)
            assert rang.wait(60)
    finally:
        over.set()
        for thread in (*threads, worker):
            thread.join(60)
            assert not thread.is_alive()
    assert terms == list(range(1, ROUNDS + 1))
    assert sorted(ran) == sorted(query for each in claimed for query in each)
    assert len(set(ran)) == len(ran)
    assert len(ran) >= ROUNDS
    assert set(taken_over) <= set(ran)
