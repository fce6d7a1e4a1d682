"""`RanQueries`: counts what has run, or was refused, without the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.lending.encounters import Encounters
from veltair.server.engine.lending.lent_work import LentWork
from veltair.server.engine.lending.lone_orders import LoneOrder, LoneOrders, record_of
from veltair.server.ipc.lane import QueryRan
from veltair.server.ipc.messages import TenantSpec


class RanQueries:
    """All that the engine keeps of a query that was claimed, once its I/O thread tells of it.

    ::

        ran_queries = RanQueries(specs, arrivals, queries, orders, encounters)
        ran_queries.leave_out(7)  # it was claimed, and has become the engine's
        ran_queries.lent = orders.to_lend()
        ran_queries.count(ran)
        ran_queries.work.queries
    """

    def __init__(
        self,
        tenants: Mapping[int, TenantSpec],
        arrivals: Arrivals,
        queries: InFlightQueries,
        orders: LoneOrders,
        encounters: Encounters,
    ) -> None:
        """`tenants`: by number, as they are now."""
        self.work = LentWork()
        self.lent: Mapping[tuple[int, int], LoneOrder] = {}  # the orders of this term
        self._tenants, self._arrivals, self._queries = tenants, arrivals, queries
        self._orders, self._encounters = orders, encounters
        self._left_out: deque[int] = deque(maxlen=64)  # the last ones

    def leave_out(self, query: int) -> None:
        """The query is counted otherwise, whatever its thread says."""
        self._left_out.append(query)

    def count(self, ran: QueryRan) -> None:
        """A thread tells of the end of what it had claimed."""
        if ran.query in self._left_out or (spec := self._tenants.get(ran.tenant)) is None:
            return
        counters = self._queries.counters[spec.name]
        self._encounters.count_unasked()
        self._arrivals.taken[ran.tenant] += 1
        if ran.refused:
            counters.count_late()
            return
        self._orders.took((ran.tenant, ran.batch), ran.end_ns - ran.begin_ns)
        lone = self.lent.get((ran.tenant, ran.batch))  # None: of a term before, and the thread was slow to tell
        block = record_of(ran, spec.name, lone)
        self.work.add(ran.tenant, block.elapsed_ns * max(1, len(block.cores)))
        counters.count_ran(spec.version, ran, block)
        self._queries.history.add([block])
