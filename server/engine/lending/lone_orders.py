"""`LoneOrders`: what queries got that met no other, and how long they took: the orders that a worker is lent with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from veltair.server.engine.in_flight_batch import InFlightBatch
from veltair.server.ipc.lane import QueryRan
from veltair.server.ipc.messages import InferQuery, TenantSpec
from veltair.server.ipc.standing_orders import MOST_LAYERS, MOST_ORDERS, StandingOrder
from veltair.server.ipc.status_records import BlockRecord
from veltair.types import DEFAULT_PRIORITY_LEVEL, CoreSet, LayerBlock

SHORT_NS = 300_000  # about what it takes to wake the engine, and to decide
WAITS = 0.5  # of the least target a query may wait for others that are as short
MOST_WAIT_NS = 100_000_000  # whatever the target
PATIENT = 2  # times the line's length
LATE = 0.8  # of its target after its arrival it is too late for a query to begin: what follows takes time, too
_STEP = 0.03  # of what was thought before; a mean would follow the few that lost their core meanwhile


class LoneOrder(NamedTuple):
    """What a lone query of a tenant gets, with what the scheduler thought of it."""

    order: StandingOrder
    level: float  # interference level that its versions were picked for
    predicted_ns: int


def record_of(ran: QueryRan, tenant: str, lone: LoneOrder | None) -> BlockRecord:
    """The block of a query that ran by this order; None: it is no longer known."""
    versions, cores = ((), ()) if lone is None else (lone.order.versions, lone.order.cores)
    return BlockRecord(
        query=ran.query,
        tenant=tenant,
        start=0,
        stop=len(versions),
        versions=versions,
        cores=cores,
        begin_ns=ran.begin_ns,
        end_ns=ran.end_ns,
        conflict=False,
        level=1.0 if lone is None else lone.level,
    )


class LoneOrders:
    """The last order of each kind, by tenant and number of samples.

    ::

        orders = LoneOrders(specs, admission.lone_block, cores=(1,), refuses=True)
        orders.foresee(infer_query)
        orders.learn(batch, met=False)  # which has ended, and met no other
        orders.took((0, 1), 45_000)
        orders.to_lend()[0, 1].order.wait_ns
    """

    def __init__(
        self,
        tenants: Mapping[int, TenantSpec],
        lone_block: Callable[[str, int], LayerBlock | None],
        cores: CoreSet,
        *,
        refuses: bool,
    ) -> None:
        """`tenants`: by number, as they are now. `lone_block`: what a query of so many samples of a tenant is by its
        profile. `cores`: where a short one runs before another has shown it. `refuses`: short queries that would begin
        too late, and those that have no room."""
        self._tenants, self._lone_block, self._cores, self._refuses = tenants, lone_block, cores, refuses
        self._orders: dict[tuple[int, int], LoneOrder] = {}
        self._elapsed_ns: dict[tuple[int, int], float] = {}  # of all layers: about the median of the last ones
        self._foreseen: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        return bool(self._orders)

    def foresee(self, query: InferQuery) -> None:
        """A query has come. One that is short by its profile has an order before any like it has run: a flood that
        meets a daemon which knows nothing yet is no time to learn."""
        key, spec = (query.tenant, query.batch), self._tenants.get(query.tenant)
        if spec is None or key in self._foreseen or len(self._orders) >= MOST_ORDERS:
            return
        self._foreseen.add(key)
        block = self._lone_block(spec.name, query.batch)
        if key not in self._orders and block and block.predicted_ns <= SHORT_NS and block.stop <= MOST_LAYERS:
            order = StandingOrder(*key, block.versions, self._cores)
            self._orders[key] = LoneOrder(order, level=1.0, predicted_ns=block.predicted_ns)
            self._elapsed_ns.setdefault(key, block.predicted_ns)

    def learn(self, batch: InFlightBatch, *, met: bool) -> None:
        """A batch has run to its end: what it got may be what its like will get. Where it `met` others, or is of
        several queries, only short ones tell, which are bounds: under a flood no query is ever alone."""
        (block, *more), start = batch.blocks, batch.started
        late = any(change.layer > block.start for change in block.core_changes)
        fits = not late and len(block.versions) <= MOST_LAYERS
        if more or start is None or (met and (block.elapsed_ns > SHORT_NS or not fits)):
            return
        for query in batch.queries:
            if query.lane is None or query.message.bucket or query.cancelled:
                continue
            key = query.message.tenant, query.message.batch
            if not fits:
                self._orders.pop(key, None)
            elif key in self._orders or len(self._orders) < MOST_ORDERS:
                if not met or key not in self._orders:
                    self._orders[key] = self._order_of(key, block, start.block.predicted_ns)
                self.took(key, block.elapsed_ns)

    def _order_of(self, key: tuple[int, int], block: BlockRecord, predicted_ns: int) -> LoneOrder:
        """What this block was. A short one stays on the first core that it was seen on: workers keep what they have
        prepared for an order that is as before."""
        cores = block.core_changes[-1].cores if block.core_changes else block.cores
        if key in self._orders and block.elapsed_ns <= SHORT_NS:
            cores = min(cores, self._orders[key].order.cores)
        return LoneOrder(StandingOrder(*key, block.versions, cores), block.level, predicted_ns)

    def took(self, key: tuple[int, int], elapsed_ns: int) -> None:
        """So long a query of this kind has run alone."""
        before_ns = self._elapsed_ns.setdefault(key, elapsed_ns)
        self._elapsed_ns[key] = before_ns * (1 + _STEP if elapsed_ns > before_ns else 1 - _STEP)

    def are_short(self, batch: InFlightBatch) -> bool:
        """Whether its queries could as well have waited for each other: they take less time than to decide of them."""
        return self.may_wait(*[query.message for query in batch.queries])

    def may_wait(self, *queries: InferQuery) -> bool:
        """Whether all are short, and nothing tells them from others that are, which they could wait for."""
        short = self._short()
        return all(
            (query.tenant, query.batch) in short
            and not query.bucket
            and not query.traced
            and query.priority_level == DEFAULT_PRIORITY_LEVEL
            for query in queries
        )

    def _short(self) -> list[tuple[int, int]]:
        """Nobody's queries wait for those of a tenant that goes after it."""
        short = [key for key, elapsed_ns in self._elapsed_ns.items() if elapsed_ns <= SHORT_NS and key in self._orders]
        return short if len({self._tenants[tenant].priority for tenant, _ in short}) <= 1 else []

    def longest_ns(self, tenant: int) -> float:
        """Of what its short queries take; 0 where it has none, since others do not wait for the worker that is lent."""
        return max((self._elapsed_ns[key] for key in self._short() if key[0] == tenant), default=0)

    def to_lend(self) -> dict[tuple[int, int], LoneOrder]:
        """All orders. Tenants whose queries wait for each other have parts of the line by their weights."""
        short = self._short()
        specs = [self._tenants[tenant] for tenant in {tenant for tenant, _ in short}]
        wait_ns = min(WAITS * min((spec.qos_ns for spec in specs), default=0), MOST_WAIT_NS)
        weights = sum(spec.share.weight for spec in specs)
        return {k: self._as_short(k, wait_ns, weights) if k in short else lone for k, lone in self._orders.items()}

    def _as_short(self, key: tuple[int, int], wait_ns: float, weights: int) -> LoneOrder:
        """On one core: to wake a second one takes as long as what it would do. Whoever could wait for much longer than
        the line, of `wait_ns`, is not refused because it is full."""
        lone, spec = self._orders[key], self._tenants[key[0]]
        refuses = self._refuses and WAITS * spec.qos_ns <= PATIENT * wait_ns
        late_us = max(1, int(LATE * spec.qos_ns / 1000)) if refuses else 0
        waits = {"wait_ns": int(wait_ns * spec.share.weight / weights), "late_us": late_us}
        return lone._replace(order=msgspec.structs.replace(lone.order, cores=lone.order.cores[:1], **waits))

    def forget(self) -> None:
        """Models come and go: nothing that was learnt holds any more."""
        self._orders.clear()
        self._elapsed_ns.clear()
        self._foreseen.clear()
