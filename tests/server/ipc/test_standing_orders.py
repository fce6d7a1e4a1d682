"""Standing orders: who may claim when, and that every claim is run, taken back by the engine, or refused, once."""

from __future__ import annotations

import os
import time
from collections import deque
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
    CLAIMS,
    MOST_LAYERS,
    MOST_ORDERS,
    NO_CLAIM,
    TERM_OVER,
    Claim,
    StandingOrder,
    StandingOrders,
    create_standing_orders,
    term_after,
)

LANES, PLACES, TERMS = 3, 8, 1 << 15
RINGS = LANES + 1  # the engine's comes last
MOST_WAITING = 192
PATIENCE_NS, ROUNDS = 1_000_000_000, 400
LONG, SHORT = 0, 3  # tenants
WAIT_NS = 5  # for claims that take no time, of a nanosecond each at most
ORDERS = [
    StandingOrder(tenant, samples, (tenant, samples), (0, 9), wait_ns=WAIT_NS if tenant == SHORT else 0)
    for tenant in (LONG, SHORT)
    for samples in (1, 2)
]
OTHER_LEVEL = 1


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
        self.runs: Claim | None = None  # that the state names
        self.waits: list[list[Claim]] = [[] for _ in range(RINGS)]
        self.line: deque[Claim] = deque()  # of those that wait, what the worker has read
        self.query = 0

    @precondition(lambda self: not self.opened)
    @rule()
    def opens(self) -> None:
        self.standing.open(self.term)
        self.lines = self.standing.lines()
        self.opened, self.withdrawn = True, False

    @rule(
        ring=st.integers(0, RINGS - 1),
        tenant=st.sampled_from([LONG, 1, SHORT]),
        samples=st.integers(1, 3),
        level=st.sampled_from([3, 3, OTHER_LEVEL]),
    )
    def claims(self, ring: int, tenant: int, samples: int, level: int) -> None:
        self.query += 1
        caller = Caller(self.query, self.query + 1, lane=ring % LANES, place=self.query % PLACES)
        number = next((i for i, o in enumerate(ORDERS) if (o.tenant, o.samples) == (tenant, samples)), None)
        claim = Claim(caller, number or 0, 5, arrival_ns=self.query, deadline_ns=9, priority_level=level)
        attends = self.opened and not self.withdrawn and number is not None
        runs_short = self.runs is not None and ORDERS[self.runs.order].tenant == SHORT
        may_wait = runs_short and tenant == SHORT and level != OTHER_LEVEL and self._held() < WAIT_NS
        taken = attends and (self.runs is None or may_wait)
        assert self.standing.ask(ring, claim, tenant, samples) == taken
        if taken and self.runs is None:
            self.runs = claim
        elif taken:
            self.waits[ring].append(claim)

    def _held(self) -> int:
        """Claims that wait or run."""
        return sum(map(len, self.waits)) + (self.runs is not None)

    @precondition(lambda self: self.opened)
    @rule()
    def withdraws(self) -> None:
        assert self.standing.withdraw(self.term) == self.runs
        assert self.standing.take_waiting(self.term) == [claim for ring in self.waits for claim in ring]
        assert self.standing.take_waiting(self.term) == []
        self._nobody_waits()
        self.withdrawn = True
        if self.runs is None:
            self._ended()

    @precondition(lambda self: self.runs is not None)
    @rule()
    def ends(self) -> None:
        assert self.runs is not None
        query = self.runs.caller.query
        position = self.standing.next_claim(self.term, patience_ns=0)
        end = BlockEnd(query, stop=2, reported=True, begin_ns=self.query, end_ns=self.query)
        over = self.standing.end(self.term, position, self.lines, end, done=None)
        assert over == self.withdrawn
        assert self.standing.end_of(query) == end
        # The worker reads what is new in all rings, one ring after the other; those of a tenant run as it read them.
        self.line.extend(claim for ring in self.waits for claim in ring if claim not in self.line)
        self.runs = self.line.popleft() if self.line else None
        for ring in self.waits:
            ring[:] = [claim for claim in ring if claim != self.runs]
        if over:
            self._ended()

    @rule()
    def dies(self) -> None:
        self.standing.close(self.term)
        self.runs = None
        self.standing.take_waiting(self.term)
        self._nobody_waits()
        self._ended()

    def _nobody_waits(self) -> None:
        self.waits = [[] for _ in range(RINGS)]
        self.line.clear()

    def _ended(self) -> None:
        assert self.standing.ended(self.term)
        assert self.standing.next_claim(self.term, patience_ns=0) == TERM_OVER
        self.term, self.opened = term_after(self.term), False

    @invariant()
    def everybody_sees_the_same(self) -> None:
        claim = self.runs
        assert self.standing.running(self.term) == claim
        position = self.standing.next_claim(self.term, patience_ns=0)  # NO_CLAIM: it goes on waiting
        assert (position == NO_CLAIM) == (claim is None)
        assert claim is None or self.standing.claim(position) == claim
        assert self.standing.next_claim(term_after(self.term), patience_ns=0) == NO_CLAIM  # its worker may be early
        if self.opened:  # one of a term before has missed its end
            assert self.standing.next_claim((self.term - 1) % TERMS, patience_ns=PATIENCE_NS) == TERM_OVER


TestTerms = TermMachine.TestCase


def test_orders_come_out_as_they_went_in() -> None:
    generator = np.random.default_rng(0)
    orders = [
        StandingOrder(
            int(generator.integers(1 << 30)),
            int(generator.integers(1 << 30)),
            tuple(generator.integers(1 << 32, size=layers).tolist()),
            tuple(sorted(set(generator.integers(1024, size=layers).tolist()))),
            *map(int, generator.integers(1 << 32, size=2)),
        )
        for layers in np.linspace(1, MOST_LAYERS, MOST_ORDERS, dtype=int).tolist()
    ]
    standing = shared()
    standing.write(orders)
    assert [standing.order(number) for number in range(len(orders))] == orders


@pytest.mark.parametrize(("elapsed_ns", "room"), [(0, MOST_WAITING), (1_000, 99), (100_000, 0)])
def test_as_many_wait_as_will_have_run_in_time(elapsed_ns: int, room: int) -> None:
    """The worker measures what a claim takes; the room follows it, for many rounds of a ring and in any term."""
    standing = shared(lanes=1)
    standing.write([StandingOrder(0, 1, (0,), (0,), wait_ns=100_000)])
    query = 0
    for term in (1, 2):
        standing.open(term)
        lines = standing.lines()
        asked: list[int] = []
        ran: list[int] = []
        for _ in range(3 * CLAIMS):
            query += 1
            if standing.ask(0, Claim(Caller(query, 0, 0, 0), 0, 0), tenant=0, samples=1):
                asked.append(query)
            position = standing.next_claim(term, patience_ns=0)
            ran.append(standing.claim(position).caller.query)
            end = BlockEnd(ran[-1], 1, reported=False, begin_ns=0, end_ns=elapsed_ns)
            standing.end(term, position, lines, end, done=None)
        assert ran == asked
        first = query + 1
        while standing.ask(0, Claim(Caller(query := query + 1, 0, 0, 0), 0, 0), tenant=0, samples=1):
            assert query < first + CLAIMS
        taken = query - first  # one of them runs
        assert abs(taken - max(room, 1)) <= room // 20
        standing.withdraw(term)
        assert len(standing.take_waiting(term)) == taken - 1
        standing.close(term)


def test_an_end_is_told_to_the_thread_that_claimed(done: DoneQueries) -> None:
    standing = shared()
    standing.write(ORDERS)
    standing.open(term=1)
    lines = standing.lines()
    caller = Caller(query=7, taken_ns=100, lane=2, place=6)
    assert standing.ask(LANES, Claim(caller, 0, slot=6), tenant=SHORT, samples=2)  # the engine, for that thread
    before_ns = time.monotonic_ns()
    position = standing.next_claim(1, patience_ns=0)
    end = BlockEnd(7, stop=2, reported=False, begin_ns=110, end_ns=130)
    assert not standing.end(1, position, lines, end, done)
    [told] = done.take(lane=2)
    times = ("query", "taken_ns", "begin_ns", "end_ns", "execute_ns", "unasked")
    assert [int(told[name]) for name in times] == [7, 100, 110, 130, 20, True]
    assert before_ns <= told["ended_ns"] <= time.monotonic_ns()
    assert standing.end_of(7).told_ns == told["ended_ns"]


def test_what_was_taken_over_did_not_run_unasked(done: DoneQueries) -> None:
    standing = shared()
    standing.write(ORDERS)
    standing.open(term=1)
    lines = standing.lines()
    assert standing.ask(0, Claim(Caller(7, 100, lane=0, place=6), 0, slot=6), tenant=LONG, samples=1)
    position = standing.next_claim(1, patience_ns=0)
    assert standing.withdraw(1) is not None
    assert standing.end(1, position, lines, BlockEnd(7, 2, reported=False, begin_ns=1, end_ns=2), done)
    assert done.take(lane=0)["unasked"].tolist() == [False]


@pytest.mark.parametrize("tenant", [LONG, SHORT])
def test_every_claim_is_run_or_taken_back_once_however_terms_come_and_go(done: DoneQueries, tenant: int) -> None:
    """Three threads claim, a worker runs, and an engine opens and withdraws, all as fast as they can."""
    standing, over, rang = shared(), Event(), Event()
    standing.write([StandingOrder(tenant, 1, (0,), (0,), wait_ns=1_000_000 if tenant == SHORT else 0)])
    claimed: list[list[int]] = [[], [], []]
    ran: list[int] = []
    taken_over: list[int] = []
    taken_back: list[int] = []

    def claim(lane: int) -> None:
        query = lane
        while not over.is_set():
            query += LANES
            if standing.ask(lane, Claim(Caller(query, 0, lane, place=lane), 0, slot=lane), tenant, samples=1):
                claimed[lane].append(query)

    def attend() -> None:
        for term in range(1, ROUNDS + 1):
            lines, ended = standing.lines(), False
            while not ended and (position := standing.next_claim(term, PATIENCE_NS // 100)) != TERM_OVER:
                if position != NO_CLAIM:
                    query = standing.claim(position).caller.query
                    ran.append(query)
                    end = BlockEnd(query, 2, reported=False, begin_ns=0, end_ns=0)
                    ended = standing.end(term, position, lines, end, done)
                elif over.is_set():  # the test has failed
                    return
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
            while sum(map(len, claimed)) < before + 3:
                assert time.monotonic() < give_up
            if found := standing.withdraw(term):
                taken_over.append(found.caller.query)
            taken_back += [found.caller.query for found in standing.take_waiting(term)]
            assert rang.wait(60)
    finally:
        over.set()
        for thread in (*threads, worker):
            thread.join(60)
            assert not thread.is_alive()
    assert sorted(ran + taken_back) == sorted(query for each in claimed for query in each)
    assert len(set(ran)) == len(ran) >= ROUNDS
    assert set(taken_over) <= set(ran)
