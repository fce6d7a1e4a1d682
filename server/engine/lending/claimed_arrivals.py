"""`ClaimedArrivals`: queries that came to the engine, and go to the worker that is lent without a decision.

While a worker is being lent, and where the ring of an I/O thread is full, short queries wait as `Arrivals`. The engine
claims for them in a ring of its own, the tenants in turn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from veltair.server.engine.arrivals import Arrival, Arrivals
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.lending.lone_orders import LoneOrder, LoneOrders
from veltair.server.ipc.done_queries import Caller
from veltair.server.ipc.messages import InferQuery
from veltair.server.ipc.standing_orders import Claim, StandingOrder, StandingOrders


class ClaimedArrivals:
    """Arrivals become claims, and claims that nobody has run become arrivals.

    ::

        claimed = ClaimedArrivals(arrivals, lanes, orders, standing)
        claimed.hand_over(lent)  # orders are open
        claimed.take_back(term, lent)  # they have been withdrawn
    """

    def __init__(
        self, arrivals: Arrivals, lanes: FrontLanes, orders: LoneOrders, standing: StandingOrders | None
    ) -> None:
        self._arrivals, self._lanes, self._orders, self._standing = arrivals, lanes, orders, standing

    def may_wait(self) -> bool:
        """Whether all that has arrived could be claimed, now or later."""
        waits = list(self._arrivals)
        return all(each.lane is not None for each in waits) and self._orders.may_wait(*[each.message for each in waits])

    def hand_over(self, lent: Mapping[tuple[int, int], LoneOrder]) -> bool:
        """Claim for what has arrived, by these orders. Returns whether the rest can wait until the ring has room."""
        if self._arrivals.hand_over(self._claim):
            return True
        left = [(arrival.message.tenant, arrival.message.batch) for arrival in self._arrivals]
        return self.may_wait() and all(key in lent and lent[key].order.wait_ns for key in left)

    def _claim(self, arrival: Arrival) -> bool:
        standing, (message, lane) = self._standing, arrival
        if standing is None or lane is None or message.traced or message.bucket:
            return False
        caller = Caller(message.query, time.monotonic_ns(), lane, self._lanes.place(message.tenant, message.slot))
        times = message.arrival_ns, message.deadline_ns or 0
        claim = Claim(caller, 0, message.slot, *times, message.priority_level)
        return standing.ask(standing.lanes, claim, message.tenant, message.batch)

    def take_back(self, term: int, lent: Mapping[tuple[int, int], LoneOrder]) -> None:
        """Those that wait, of all rings, are queries that have arrived."""
        if self._standing is not None:
            orders = [lone.order for lone in lent.values()]
            for claim in self._standing.take_waiting(term):
                self._arrivals.add(self.message(claim, orders[claim.order]), claim.caller.lane)

    def message(self, claim: Claim, order: StandingOrder) -> InferQuery:
        """The query as the I/O thread would have sent it."""
        tenant, slot = self._lanes.tenant_and_slot(claim.caller.place)
        times = claim.arrival_ns, claim.deadline_ns or None
        what = claim.caller.query, tenant, slot, order.samples
        return InferQuery(*what, *times, priority_level=claim.priority_level)

    def refuse_more(self, tenant: int, *, lending: bool) -> None:
        """A query has arrived: have the front refuse more of the tenant's while they would wait here for too long, for
        the worker that is lent (`lending`) or for decisions."""
        if not lending:
            if over_ns := self._arrivals.too_long_ns(tenant):
                self._lanes.shut(tenant, 1, over_ns)
        elif over_ns := self._arrivals.too_long_ns(tenant, self._orders.longest_ns(tenant)):
            self._lanes.refuse(tenant, over_ns)
