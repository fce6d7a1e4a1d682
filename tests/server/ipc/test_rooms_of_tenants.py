"""A ring of claims is a line that tenants share: each has an equal part of it."""

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


def test_no_tenant_fills_a_ring_for_another() -> None:
    """Of two whose claims wait each has half of the room, in each term, whoever comes first and however often."""
    descriptor = create_standing_orders(1)
    standing = StandingOrders(descriptor, 1)
    os.close(descriptor)
    standing.write([StandingOrder(tenant, 1, (0,), (0,), wait_ns=50) for tenant in (4, 9)])
    query = 0

    def claims(tenant: int) -> bool:
        nonlocal query
        query += 1
        return standing.ask(0, Claim(Caller(query, 0, 0, 0), 0, 0), tenant, samples=1)

    for term in (1, 2, 3):
        standing.open(term)
        cursors = standing.begin_claims()
        assert [claims(4) for _ in range(60)].count(True) == 25  # claims of no time: 50 have room
        assert [claims(9) for _ in range(60)].count(True) == 25
        tenants = []
        while (position := standing.next_claim(term, patience_ns=0)) != NO_CLAIM:
            claim = standing.claim(position)
            tenants.append(standing.order(claim.order).tenant)
            end = BlockEnd(claim.caller.query, stop=1, reported=False, begin_ns=0, end_ns=0)
            standing.end(term, position, cursors, end, done=None)
            if len(tenants) < 400:  # one asks ten times as often
                assert [claims(4) for _ in range(10)].count(True) <= 1
                claims(9)
        standing.withdraw(term)
        assert standing.take_waiting(term) == []
        assert 0.4 < tenants.count(9) / len(tenants) < 0.6
