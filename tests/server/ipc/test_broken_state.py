"""`StandingOrders.check`: a state that follows from nothing that the engine did is noticed at each step of a term."""

from __future__ import annotations

import os

import pytest

from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.done_queries import Caller
from veltair.server.ipc.standing_orders import (
    BrokenOrdersError,
    Claim,
    StandingOrder,
    StandingOrders,
    create_standing_orders,
)

TENANT = 3


def shared_orders() -> StandingOrders:
    descriptor = create_standing_orders(lanes=2)
    try:
        return StandingOrders(descriptor, lanes=2)
    finally:
        os.close(descriptor)


def test_a_state_that_nobody_wrote_is_noticed_whatever_the_engine_did_last() -> None:
    standing, term = shared_orders(), 7
    standing.write([StandingOrder(TENANT, samples=1, versions=(0, 2), cores=(0,))])
    nonsense = [0xFFFFFFFF, (term + 1) << 17 | 1, term << 17 | 0x1FFFC | 2, 3]

    def notices(*also: int) -> None:
        right = standing._functions.orders_state(standing.address)
        for state in (*nonsense, *also):
            standing._page[:4] = state.to_bytes(4, "little")
            with pytest.raises(BrokenOrdersError, match=f"{state:#x}"):
                standing.check()
        standing._page[:4] = right.to_bytes(4, "little")
        standing.check()

    notices(1)  # before the first term
    assert not standing.close(term - 1)
    notices(term << 17 | 1)
    standing._page[:4] = nonsense[0].to_bytes(4, "little")
    with pytest.raises(BrokenOrdersError):
        standing.open(term)
    assert standing.close(term - 1)
    standing.open(term)
    notices()
    claim = Claim(Caller(1, 100, lane=0, place=0), order=0, slot=0)
    assert standing.ask(0, claim, TENANT, samples=1)
    standing.check()
    assert standing.withdraw(term) == claim
    notices(term << 17 | 1, term << 17 | 1 << 2 | 3)  # open once more, and another claim
    position, lines = standing.next_claim(term, patience_ns=0), standing.lines()
    assert standing.end(term, position, lines, BlockEnd(1, 2, reported=True, begin_ns=0, end_ns=0), done=None)
    notices(term << 17 | 1)
