"""`ClaimedArrivals`: queries that came to the engine, and go to the worker that is lent without a decision.

While a worker is being lent, and where the ring of an I/O thread is full, short queries wait as `Arrivals`. The engine
claims for them in a ring of its own, the tenants in turn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from veltair.server.engine.arrivals import Arrival, Arrivals
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.lending.lone_orders import LoneOrder, LoneOrders
from veltair.server.ipc.done_queries import Caller
from veltair.server.ipc.messages import InferQuery
from veltair.server.ipc.standing_orders import BrokenOrdersError, Claim, StandingOrders
from veltair.server.ipc.worker_cell import ATTEND
from veltair.types import PRIORITY_LEVELS

BELIEVED = 4  # times what a query takes: the pace of claims stands where any worker can write


class ClaimedQuery(NamedTuple):
    """A query that has been claimed: `ClaimedQuery(infer_query, caller, lone_order)`."""

    message: InferQuery  # as the I/O thread would have sent it
    caller: Caller
    order: LoneOrder


class ClaimedArrivals:
    """Arrivals become claims, and claims that nobody has run become arrivals.

    ::

        claimed = ClaimedArrivals(arrivals, lanes, orders, standing)
        claimed.hand_over(term, lent)  # orders are open
        claimed.take_back(standing, term, lent, known=queries.ids)  # and no more of them run
    """

    def __init__(
        self, arrivals: Arrivals, lanes: FrontLanes, orders: LoneOrders, standing: StandingOrders | None
    ) -> None:
        self._arrivals, self._lanes, self._orders, self._standing = arrivals, lanes, orders, standing

    def may_wait(self) -> bool:
        """Whether all that has arrived could be claimed, now or later."""
        waits = list(self._arrivals)
        return all(each.lane is not None for each in waits) and self._orders.may_wait(*[each.message for each in waits])

    def hand_over(self, term: int, lent: Mapping[tuple[int, int], LoneOrder]) -> bool:
        """Claim for what has arrived, by the orders of this term. Returns whether the rest can wait until the ring has
        room: not for one that runs and is not short."""
        if not self._arrivals or self._standing is None:
            return not self._arrivals
        runs = self._standing.running(term)
        if runs is not None and not self.is_waited_for(runs, lent):
            return False
        are_all = self._arrivals.hand_over(self._claim)
        left = [(arrival.message.tenant, arrival.message.batch) for arrival in self._arrivals]
        return are_all or (self.may_wait() and all(key in lent and lent[key].order.wait_ns for key in left))

    def _claim(self, arrival: Arrival) -> bool:
        standing, (message, lane) = self._standing, arrival
        if standing is None or lane is None or message.traced or message.bucket:
            return False
        caller = Caller(message.query, time.monotonic_ns(), lane, self._lanes.place(message.tenant, message.slot))
        times = message.arrival_ns, message.deadline_ns or 0
        claim = Claim(caller, 0, message.slot, *times, message.priority_level)
        return standing.ask(standing.lanes, claim, message.tenant, message.batch)

    def take_back(
        self, standing: StandingOrders, term: int, lent: Mapping[tuple[int, int], LoneOrder], known: Set[int]
    ) -> ClaimedQuery | None:
        """No more claims of this term run: those that wait, of all rings, are queries that have arrived. Returns the
        one that runs. Workers write this memory, too: raises BrokenOrdersError, and takes nothing, where it has what no
        thread claims. `known`: the queries in flight."""
        running = standing.withdraw(term)
        claims = ([] if running is None else [running]) + standing.take_waiting(term)
        orders = list(lent.items())
        queries = [self._query(claim, orders) for claim in claims]
        others = {arrival.message.query for arrival in self._arrivals} if queries else set()
        ids = {each.message.query for each in queries}
        if len(ids) < len(queries) or ids & others or ids & known:
            raise BrokenOrdersError("a query is claimed twice")
        for each in queries[running is not None :]:
            self._arrivals.add(each.message, each.caller.lane)
        return queries[0] if running is not None else None

    def _query(self, claim: Claim, orders: Sequence[tuple[tuple[int, int], LoneOrder]]) -> ClaimedQuery:
        """The query as the I/O thread would have sent it. Raises BrokenOrdersError where no thread claims so."""
        caller, lanes = claim.caller, len(self._lanes)
        tenant, slot = self._lanes.tenant_and_slot(caller.place)
        key, lone = orders[claim.order] if claim.order < len(orders) else ((-1, 0), None)
        in_time = 0 <= claim.arrival_ns <= caller.taken_ns <= time.monotonic_ns() and claim.deadline_ns >= 0
        is_known = lone is not None and key[0] == tenant and slot == claim.slot and caller.lane < lanes
        if lone is None or not (
            is_known and in_time and 0 < caller.query < ATTEND and 1 <= claim.priority_level <= PRIORITY_LEVELS
        ):
            raise BrokenOrdersError(f"{claim}")
        times = claim.arrival_ns, claim.deadline_ns or None
        message = InferQuery(caller.query, tenant, slot, key[1], *times, priority_level=claim.priority_level)
        return ClaimedQuery(message, caller, lone)

    def is_waited_for(self, claim: Claim, lent: Mapping[tuple[int, int], LoneOrder]) -> bool:
        """Whether others may wait for this one, which runs."""
        orders = list(lent.values())
        return claim.order < len(orders) and bool(orders[claim.order].order.wait_ns)  # a worker wrote that

    def refuse_more(self, tenant: int, *, lending: bool) -> None:
        """A query has arrived: have the front refuse more of the tenant's while they would wait here for too long, for
        the worker that is lent (`lending`) or for decisions."""
        if not lending:
            if over_ns := self._arrivals.too_long_ns(tenant):
                self._lanes.shut(tenant, 1, over_ns)
        else:
            longest_ns, paced_ns = self._orders.longest_ns(tenant), self._standing.each_ns() if self._standing else 0
            each_ns = min(max(longest_ns, paced_ns), BELIEVED * longest_ns)
            if over_ns := self._arrivals.too_long_ns(tenant, each_ns):
                self._lanes.refuse(tenant, over_ns)
