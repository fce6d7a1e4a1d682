"""Claims that wait have room together: each tenant has its part of it, and what others leave of the first half. The
worker serves the tenants in turn, by their weights."""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.done_queries import Caller
from veltair.server.ipc.standing_orders import (
    NO_CLAIM,
    Claim,
    StandingOrder,
    StandingOrders,
    create_standing_orders,
)

LANES = 2


class Line:
    """Claims of no time: as many have room as their parts have nanoseconds."""

    def __init__(self, **parts: int) -> None:
        descriptor = create_standing_orders(LANES)
        self.standing, self._query, self.names = StandingOrders(descriptor, LANES), 0, list(parts)
        os.close(descriptor)
        self.standing.write([StandingOrder(i, 1, (0,), (0,), wait_ns=part) for i, part in enumerate(parts.values())])

    def ask(self, name: str, times: int) -> int:
        """How many of so many claims are taken, by whichever thread."""
        taken = 0
        for _ in range(times):
            self._query += 1
            claim = Claim(Caller(self._query, 0, 0, 0), 0, 0)
            taken += self.standing.ask(self._query % LANES, claim, self.names.index(name), samples=1)
        return taken

    def run(self, term: int, position: int, **elapsed_ns: int) -> str:
        """The one at this position, to its end. Returns whose it was."""
        claim = self.standing.claim(position)
        took_ns = elapsed_ns.get(self.names[self.standing.order(claim.order).tenant], 0)
        end = BlockEnd(claim.caller.query, stop=1, reported=False, begin_ns=0, end_ns=took_ns)
        self.standing.end(term, position, self.lines, end, done=None)
        return self.names[self.standing.order(claim.order).tenant]

    def open(self, term: int) -> None:
        """What a claim takes is known from the first one."""
        self.standing.open(term)
        self.lines = self.standing.lines()
        if not self.standing.each_ns():
            assert self.ask(self.names[0], 1) == 1
            self.run(term, self.standing.next_claim(term, patience_ns=0))


def test_no_tenant_fills_the_line_for_another() -> None:
    """In each term, whoever comes first and however often, by whatever threads."""
    line = Line(flood=25, quiet=25)
    for term in (1, 2, 3):
        line.open(term)
        assert line.ask("flood", 60) == 25
        assert line.ask("quiet", 60) == 25
        ran = []
        while (position := line.standing.next_claim(term, patience_ns=0)) != NO_CLAIM:
            ran.append(line.run(term, position))
            if len(ran) < 400:  # one asks ten times as often
                assert line.ask("flood", 10) <= 1
                line.ask("quiet", 1)
        line.standing.withdraw(term)
        assert line.standing.take_waiting(term) == []
        assert 0.4 < ran.count("quiet") / len(ran) < 0.6


def test_a_tenant_has_what_others_leave_of_the_first_half() -> None:
    line = Line(light=10, heavy=50, other=40)
    line.open(1)
    assert line.ask("light", 90) == 50
    assert line.ask("other", 90) == 40
    assert line.ask("heavy", 90) == 50
    ran = Counter(line.run(1, line.standing.next_claim(1, patience_ns=0)) for _ in range(100))
    assert ran == {"light": 10, "heavy": 50, "other": 40}  # by their weights, however many wait
    assert line.ask("light", 90) == 50 - 40


def test_who_asks_for_little_waits_for_nobodys_line() -> None:
    line = Line(flood=100, quiet=50)
    line.open(1)
    assert line.ask("flood", 90) == 90
    for _ in range(20):
        assert line.ask("quiet", 1) == 1
        ran = [line.run(1, line.standing.next_claim(1, patience_ns=0), flood=100, quiet=100) for _ in range(4)]
        assert "quiet" in ran[:3]  # behind the one that runs, and what the flood has not had yet by its weight


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(10_000, 50_000), st.integers(10_000, 50_000))
def test_the_worker_divides_its_time_by_weights(heavy: int, light: int, long_ns: int, short_ns: int) -> None:
    """Not its claims: those of one tenant may take longer than those of the other."""
    line = Line(one=heavy * 10_000_000, other=light * 10_000_000)
    line.open(1)
    had = {"one": 0, "other": 0}
    line.ask("one", 2), line.ask("other", 2)
    while sum(had.values()) < 200 * (long_ns + short_ns):
        name = line.run(1, line.standing.next_claim(1, patience_ns=0), one=long_ns, other=short_ns)
        had[name] += {"one": long_ns, "other": short_ns}[name] + 1  # nothing is for nothing
        assert line.ask(name, 1) == 1
        most_ahead = (long_ns + 1) / heavy + (short_ns + 1) / light  # the bound of start-time fair queueing
        assert abs(had["one"] / heavy - had["other"] / light) <= 1.01 * most_ahead


def test_few_wait_until_it_is_known_what_a_claim_takes() -> None:
    """A flood that meets a worker which has run nothing yet would fill hundreds of places."""
    line = Line(flood=10_000_000, quiet=10_000_000)
    line.standing.open(1)
    assert 1 <= line.ask("flood", 100) <= 8
    assert 1 <= line.ask("quiet", 100) <= 8


def test_what_was_taken_back_leaves_its_room() -> None:
    line = Line(flood=20)
    for term in range(1, 50):
        line.open(term)
        assert line.ask("flood", 30) == 20
        position = line.standing.next_claim(term, patience_ns=0)
        assert line.standing.withdraw(term) is not None
        assert len(line.standing.take_waiting(term)) == 19
        line.run(term, position)
