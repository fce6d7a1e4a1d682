"""`ClaimedArrivals`: claims become arrivals, and what no thread claims is refused as a whole."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.lending.claimed_arrivals import ClaimedArrivals
from veltair.server.engine.lending.lone_orders import LoneOrder, LoneOrders
from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.done_queries import Caller
from veltair.server.ipc.messages import InferQuery, TenantSpec
from veltair.server.ipc.standing_orders import (
    BrokenOrdersError,
    Claim,
    StandingOrder,
    StandingOrders,
    create_standing_orders,
)
from veltair.types import LayerBlock

LANES, SLOTS, TERM = 2, 8, 5
SPECS = {number: TenantSpec(f"{number}", "/", "ab12", 10**7, 0.95, 1, batching=True) for number in range(2)}
LENT = {(tenant, 1): LoneOrder(StandingOrder(tenant, 1, (0,), (0,), 10**6), 1.0, 100) for tenant in SPECS}

BLOCK = LayerBlock(1, 0, 1, (0,), 1, 200_000)


class Lanes:
    """What `ClaimedArrivals` has of the lanes."""

    refuse: Callable[[int, int], None]

    def __len__(self) -> int:
        return LANES

    def place(self, tenant: int, slot: int) -> int:
        return tenant * SLOTS + slot

    def tenant_and_slot(self, place: int) -> tuple[int, int]:
        return divmod(place, SLOTS)


class Claims:
    """Claims of a term in shared memory, and who takes them back."""

    def __init__(self) -> None:
        descriptor = create_standing_orders(LANES)
        self.standing = StandingOrders(descriptor, LANES)
        os.close(descriptor)
        self.arrivals = Arrivals(SPECS)
        self.lanes = Lanes()
        self.orders = LoneOrders(SPECS, lambda *_: BLOCK, (0,), refuses=True)
        self.claimed = ClaimedArrivals(self.arrivals, cast(FrontLanes, self.lanes), self.orders, self.standing)
        self.standing.write([lone.order for lone in LENT.values()])
        self.standing.open(TERM)

    def ask(self, number: int, tenant: int = 0, **other: int) -> bool:
        """A thread claims for its query of this number, with `other` in place of what is right."""
        now_ns, slot, lane = time.monotonic_ns(), number % SLOTS, number % LANES
        caller = {"query": number, "taken_ns": now_ns, "lane": lane, "place": tenant * SLOTS + slot}
        rest = {"slot": slot, "arrival_ns": now_ns, "deadline_ns": 0, "priority_level": 3}
        found = [[other.get(name, right) for name, right in part.items()] for part in (caller, rest)]
        return self.standing.ask(lane, Claim(Caller(*found[0]), 0, *found[1]), tenant, 1)

    def take_back(self, known: frozenset[int] = frozenset()) -> list[InferQuery]:
        """All that were claimed, the one that runs first."""
        running = self.claimed.take_back(self.standing, TERM, LENT, known)
        waiting = [arrival.message for arrival in self.arrivals]
        return waiting if running is None else [running.message, *waiting]


def test_what_was_claimed_comes_back_once() -> None:
    claims = Claims()
    assert all(claims.ask(query, tenant=query % 2) for query in range(1, 9))
    found = claims.take_back()
    assert sorted((each.query, each.tenant, each.slot) for each in found) == [
        (q, q % 2, q % SLOTS) for q in range(1, 9)
    ]
    assert found[0].query == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"lane": LANES},
        {"place": len(SPECS) * SLOTS},
        {"place": 2**32 - 1},
        {"place": SLOTS},  # of the other tenant
        {"slot": 7},
        {"query": 0},
        {"query": 1},  # which another has claimed
        {"query": 77},  # which the engine has
        {"query": 2**64 - 1},
        {"taken_ns": 2**62},
        {"arrival_ns": -1},
        {"deadline_ns": -1},
        {"priority_level": 0},
        {"priority_level": 6},
    ],
    ids=str,
)
def test_what_no_thread_claims_is_refused_with_all_others(wrong: dict[str, int]) -> None:
    claims = Claims()
    first, second = ({}, wrong) if "priority_level" not in wrong else (wrong, {})  # of other levels none waits
    assert claims.ask(1, **first) and claims.ask(2, **second)
    with pytest.raises(BrokenOrdersError):
        claims.take_back(known=frozenset({77}))
    assert not claims.arrivals


@given(
    asked=st.integers(0, 6),
    writes=st.lists(st.tuples(st.integers(0, 60_000), st.binary(min_size=1, max_size=64)), min_size=1, max_size=8),
    state=st.none() | st.integers(0, 2**32 - 1),
)
def test_whatever_workers_write_costs_no_more_than_the_term(
    asked: int, writes: list[tuple[int, bytes]], state: int | None
) -> None:
    """Bytes anywhere in the memory: all that comes back are queries of known tenants, or one error says why not."""
    claims = Claims()
    for query in range(1, asked + 1):
        assert claims.ask(query)
    page = claims.standing._page
    for at, data in writes:
        at %= len(page) - len(data)
        page[at : at + len(data)] = data
    if state is not None:
        page[:4] = state.to_bytes(4, "little")
    with suppress(BrokenOrdersError):
        claims.standing.check()
    running = claims.standing.running(TERM)
    assert running is None or claims.claimed.is_waited_for(running, LENT) in (False, True)
    claims.ask(10)  # a thread goes on
    try:
        found = claims.take_back()
    except BrokenOrdersError:
        assert not claims.arrivals
    else:
        assert all((each.tenant, each.batch) in LENT and 0 <= each.slot < SLOTS for each in found)
        assert len({each.query for each in found}) == len(found)


def test_a_line_is_as_long_as_it_takes_and_no_shorter() -> None:
    claims, refused = Claims(), list[tuple[int, int]]()
    claims.lanes.refuse = lambda tenant, for_ns: refused.append((tenant, for_ns))
    lines = claims.standing.lines()
    claims.orders.foresee(InferQuery(1, 0, 1, 1, time.monotonic_ns(), None))
    for query in range(1, 21):  # one in half a millisecond, whatever its kernels take
        assert claims.ask(query)
        end = BlockEnd(query, 1, reported=False, begin_ns=query * 500_000, end_ns=query * 500_000 + 500_000)
        claims.standing.end(TERM, claims.standing.next_claim(TERM, 0), lines, end, done=None)
    for number in range(21, 41):
        claims.arrivals.add(InferQuery(number, 0, number % SLOTS, 1, time.monotonic_ns(), None), 0)
    claims.claimed.refuse_more(0, lending=True)
    assert refused == [(0, 9 * 10**6)]  # twenty wait, and may wait for a tenth of their target


def test_no_worker_has_a_lone_query_refused_by_what_it_writes() -> None:
    claims, refused = Claims(), list[tuple[int, int]]()
    claims.lanes.refuse = lambda tenant, for_ns: refused.append((tenant, for_ns))
    claims.orders.foresee(InferQuery(1, 0, 1, 1, time.monotonic_ns(), None))
    claims.standing._page[:] = b"\xff" * len(claims.standing._page)
    claims.arrivals.add(InferQuery(1, 0, 1, 1, time.monotonic_ns(), None), 0)
    claims.claimed.refuse_more(0, lending=True)
    assert not refused


def test_nobody_waits_behind_one_that_is_not_short() -> None:
    claims = Claims()
    long = LENT[1, 1]._replace(order=msgspec.structs.replace(LENT[1, 1].order, wait_ns=0))
    claims.arrivals.add(InferQuery(1, 0, 1, 1, time.monotonic_ns(), None), 0)
    assert claims.ask(2, tenant=1)
    assert not claims.claimed.hand_over(TERM, LENT | {(1, 1): long}) and len(claims.arrivals) == 1
    assert claims.claimed.hand_over(TERM, LENT) and not claims.arrivals
