"""Claims that wait are a line that tenants share: each has its part of it, and what others leave of the first half."""

from __future__ import annotations

import os

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

    def run(self, term: int, position: int) -> str:
        """The one at this position, to its end. Returns whose it was."""
        claim = self.standing.claim(position)
        end = BlockEnd(claim.caller.query, stop=1, reported=False, begin_ns=0, end_ns=0)
        self.standing.end(term, position, self.cursors, end, done=None)
        return self.names[self.standing.order(claim.order).tenant]

    def open(self, term: int) -> None:
        self.standing.open(term)
        self.cursors = self.standing.begin_claims()


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
    ran = [line.run(1, line.standing.next_claim(1, patience_ns=0)) for _ in range(100)]
    assert len(set(ran)) == 3
    assert line.ask("light", 90) == max(10, 50 - 40) - (50 - ran.count("light"))


def test_what_was_taken_back_leaves_its_room() -> None:
    line = Line(flood=20)
    for term in range(1, 50):
        line.open(term)
        assert line.ask("flood", 30) == 20
        position = line.standing.next_claim(term, patience_ns=0)
        assert line.standing.withdraw(term) is not None
        assert len(line.standing.take_waiting(term)) == 19
        line.run(term, position)
