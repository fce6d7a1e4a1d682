"""`LoneQueries`: lends a worker to the front's I/O threads while queries come one by one, and takes it back in time.

A query that meets no other is decided like the last one of its kind, and to wake the engine for that costs several
times what a small query's kernels do. So after some of them the engine leaves its orders with the threads
(`ipc/standing_orders`) and sleeps; it counts what they ran when it wakes next. Queries that are shorter than a decision
may meet others like them: they wait for the worker as long as that leaves them time. Before the engine decides anything
it takes the worker back. A query that runs then becomes one in flight like any other: the scheduler is told of it
(`QueryRuns`), so it is cancelled, watched and made room for as ever. Those that wait are queries that arrive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum

from veltair.scheduler.events import QueryCancelled, QueryRuns
from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.engine.in_flight_batch import InFlightBatch
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.lending.claimed_arrivals import ClaimedArrivals, ClaimedQuery
from veltair.server.engine.lending.encounters import Encounters
from veltair.server.engine.lending.lone_orders import LoneOrder, LoneOrders
from veltair.server.engine.lending.ran_queries import RanQueries
from veltair.server.engine.lending.recall import Recall
from veltair.server.engine.lending.running_claim import RunningClaim
from veltair.server.engine.worker_process import WorkerProcess
from veltair.server.engine.worker_supervisor import WorkerSupervisor
from veltair.server.ipc import messages as m
from veltair.server.ipc.block_orders import BlockEnd
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.standing_orders import BrokenOrdersError, StandingOrders, term_after
from veltair.server.ipc.worker_cell import ATTEND
from veltair.types import LayerBlock

logger = logging.getLogger("veltair.engine")

LONG_WAIT_NS = 20_000_000  # for a block that is thought to be short, before what has arrived is decided instead
LOOK_S = 0.001  # until it looks again whether the worker has time for what has arrived


class _State(Enum):
    OWN = "all workers are the engine's"
    CALLED = "a worker has been called, and does not attend yet"
    LENT = "a worker attends to what I/O threads order"
    TAKEN_OVER = "it still runs a query, which has become the engine's"
    BROKEN = "it wrote what it never writes, and is being killed"


class LoneQueries:
    """The worker that is lent, if there is one, and the orders that go with it.

    ::

        lone = LoneQueries(descriptors, specs, arrivals, lanes, supervisor, queries, decide, lone_orders)
        lone.lend()  # nothing is in flight
        if lone.take_back():  # before a decision
            …
        lone.hear()  # once a worker has rung
    """

    def __init__(
        self,
        descriptors: LaneDescriptors | None,
        tenants: Mapping[int, m.TenantSpec],
        arrivals: Arrivals,
        lanes: FrontLanes,
        supervisor: WorkerSupervisor,
        queries: InFlightQueries,
        decide: Callable[[QueryRuns | QueryCancelled], None],
        orders: LoneOrders,
    ) -> None:
        """`descriptors`: None where nothing is lent. `tenants`: by number. `decide`: as the engine does it."""
        self._standing = StandingOrders(descriptors.standing, len(descriptors.wakes)) if descriptors else None
        self._tenants, self._arrivals, self._lanes = tenants, arrivals, lanes
        self._supervisor, self._queries = supervisor, queries
        self._decide = decide
        self._orders = orders  # those of the next term
        self._claimed_arrivals = ClaimedArrivals(arrivals, lanes, self._orders, self._standing)
        self._lent: dict[tuple[int, int], LoneOrder] = {}  # those of the last one, in the order of their numbers
        self._encounters = Encounters(time.monotonic_ns())  # of those that are not short
        self._ran = RanQueries(tenants, arrivals, queries, self._orders, self._encounters)
        self.work = self._ran.work
        self._recall, self._running = Recall(arrivals, lanes, queries), RunningClaim()
        self._ended_ns = 0  # when the last batch did
        self._worker: WorkerProcess | None = None
        self._state, self._term = _State.OWN, 0
        self._unwanted = False  # what was called is to be taken back
        self._taken_over = 0  # the query
        self.lending = False  # what has arrived waits until a worker is lent, or the one that is has time
        lanes.ran, queries.on_done = self._ran.count, self._ended

    def _ended(self, batch: InFlightBatch) -> None:
        """A batch has run to its end: what it ran may be what its like will run."""
        met = len(batch.queries) > 1 or bool(self._queries.batches()) or batch.queries[0].taken_ns < self._ended_ns
        self._ended_ns = time.monotonic_ns()
        self._encounters.count(met=met and not self._orders.are_short(batch))
        self._orders.learn(batch, met=met)

    def forget(self) -> None:
        """Models come and go: nothing that was learnt holds any more."""
        self._orders.forget()
        self._encounters.forget()

    @property
    def _lends(self) -> bool:
        return self._encounters.are_rare and bool(self._orders) and self._standing is not None

    def must_decide(self, *, changing: bool) -> bool:
        """Returns whether the scheduler is to be told of what has arrived, now. `changing`: models come or go."""
        if changing:
            self.forget()
        self.lending = not changing and self._takes_arrivals()
        return bool(self._arrivals) and not self.lending and self.take_back()

    def wait_s(self, otherwise: float | None) -> float | None:
        """How long the engine may sleep."""
        if not self._arrivals or self._state is _State.CALLED:
            return otherwise
        return min(LOOK_S, otherwise or LOOK_S) if self.lending else 0

    def _takes_arrivals(self) -> bool:
        """Whether all that has arrived needs no decision: it is claimed, or will be."""
        if self._state is _State.LENT:
            return self._claimed_arrivals.hand_over(self._term, self._lent)
        if self._state is _State.BROKEN or not self._recall.is_over:
            return False
        since_ns = time.monotonic_ns() - LONG_WAIT_NS
        return (
            self._lends
            and self._claimed_arrivals.may_wait()
            and all(self._orders.are_short(b) and b.ordered_ns > since_ns for b in self._queries.batches())
        )

    def lend(self) -> None:
        """Lend a worker if queries came one by one or are short, nothing is in flight, and nothing is to be decided."""
        is_idle = not self._queries.batches() and (self.lending or not self._arrivals)
        if self._state is not _State.OWN or not is_idle or not self._recall.is_over:
            return
        self.lending = self._lends and not self._encounters.must_learn(time.monotonic_ns())
        if not self.lending or self._standing is None:
            return
        if (worker := self._supervisor.lend()) is None:
            self._encounters.forget()
            self.lending = False  # what waits is to be decided
            return
        self._term = term_after(self._term)
        self._state, self._worker, self._unwanted = _State.CALLED, worker, False
        self._lent = self._ran.lent = self._orders.to_lend()
        worker.attend(self._term, next(iter(self._lent.values())).order.cores)

    def take_back(self) -> bool:
        """Returns whether something may be decided: the scheduler knows all queries in flight."""
        if self._state is _State.CALLED:
            self._unwanted = True  # it has not read its order yet, so nothing else can be ordered
            return False
        if self._state is _State.LENT:
            self._take_back_lent()
        return True

    def arrived(self, message: m.InferQuery) -> None:
        """It has come by a lane; the front is to refuse more of the tenant's where they would wait for too long."""
        self._recall.arrived(message.query)
        self._orders.foresee(message)
        self._claimed_arrivals.refuse_more(message.tenant, lending=self.lending)

    def _take_back_lent(self) -> None:
        standing, worker = self._standing, self._worker
        assert standing is not None and worker is not None
        try:
            claimed = self._claimed_arrivals.take_back(standing, self._term, self._lent, self._queries.ids)
        except BrokenOrdersError as error:
            self._break(standing, worker, error)
        else:
            if claimed is None:  # nothing ran
                self._return()
            else:
                self._take_over(worker, claimed)

    def _break(self, standing: StandingOrders, worker: WorkerProcess, what: object) -> None:
        """Nothing in the memory can be believed. Once the worker is gone, the threads say what they wait for."""
        standing.close(self._term)
        self._state = _State.BROKEN
        self._supervisor.kill_broken(worker, str(what))

    def _take_over(self, worker: WorkerProcess, claimed: ClaimedQuery) -> None:
        """The query that runs is one in flight from here on."""
        message, caller, (order, level, predicted_ns) = claimed
        self._state, self._taken_over = _State.TAKEN_OVER, message.query
        self._ran.leave_out(message.query)
        query = self._queries.add(message, caller.taken_ns, caller.lane)
        self._queries.take_over(message.query, worker)
        block = LayerBlock(query.id, 0, len(order.versions), order.versions, len(order.cores), predicted_ns)
        self._decide(QueryRuns(time.monotonic_ns(), query, block, level))

    def hear(self) -> BlockEnd | None:
        """A worker has rung. Returns the end of the query that was taken over, once."""
        worker, standing = self._worker, self._standing
        if worker is None or standing is None:
            return None
        if self._state is _State.CALLED and (end := worker.cell.take_end()) is not None:
            self._attends(standing, worker, end)
        elif self._state is _State.TAKEN_OVER and standing.ended(self._term):
            query, self._taken_over = self._taken_over, 0
            self._state, self._worker = _State.OWN, None
            if self._queries.has_batch(query):  # it has not failed
                end = standing.end_of(query)
                if end.refused and self._queries.cancel(query):
                    self._decide(QueryCancelled(time.monotonic_ns(), query))
                return end
        return None

    def fail(self, worker: WorkerProcess, failed: m.KernelFailed, reason: str) -> bool:
        """Tell the I/O thread that what it has claimed failed. Returns False where the query is the engine's."""
        if self._queries.has_batch(failed.query):
            return False
        lane, place = failed.claimed_by or (-1, 0)
        tenant, slot = self._lanes.tenant_and_slot(place)
        if self._queries.has(failed.query) or tenant not in self._tenants or not 0 <= lane < len(self._lanes):
            self._supervisor.kill_broken(worker, f"it was not to run query {failed.query}, which failed")
            return True
        message = m.InferQuery(failed.query, tenant, slot, 1, time.monotonic_ns(), None)
        self._queries.fail_claimed(message, lane, reason)
        return True

    def find(self, query: int) -> None:
        """Make the query the engine's where an I/O thread has claimed it."""
        if self._state is _State.LENT and not self._queries.has(query):
            self._take_back_lent()

    def look(self, *, wanted: bool) -> None:
        """Take the worker back where it is `wanted`, runs a query for long, which is watched only then, or orders are
        old."""
        self._check_memory()
        if wanted or (self._state is _State.LENT and self._is_due()):
            self.take_back()

    def _is_due(self) -> bool:
        claim = self._standing.running(self._term) if self._standing else None
        if claim is not None and self._worker is not None:
            waited_for = self._claimed_arrivals.is_waited_for(claim, self._lent)
            if self._running.takes_long(claim, self._worker.pid, waited_for=waited_for):
                return True
        return self._encounters.must_learn(time.monotonic_ns())

    def _check_memory(self) -> None:
        if (standing := self._standing) is None or self._state is _State.BROKEN or not self._recall.is_over:
            return
        try:
            standing.check()
        except BrokenOrdersError as error:
            if self._worker is not None:
                self._break(standing, self._worker, error)
            else:
                logger.error("a worker wrote nonsense into shared memory, and none was lent: %s", error)
                standing.close(self._term)
                self._recall.begin()

    def worker_dies(self, worker: WorkerProcess) -> None:
        """The process is gone, or soon will be. What it runs becomes the engine's, which ends it then."""
        if worker is self._worker and self._state is _State.LENT:
            self._take_back_lent()

    def worker_died(self, worker: WorkerProcess) -> None:
        """The process is gone."""
        self._lanes.tell_all()  # it may have told of an end, and not have woken the thread
        if worker is self._worker and self._standing is not None:
            if self._standing.close(self._term) or self._state is _State.BROKEN:
                self._recall.begin()
            self._state, self._worker = _State.OWN, None

    def _attends(self, standing: StandingOrders, worker: WorkerProcess, end: BlockEnd) -> None:
        """What was called answers: the orders are open, unless it is to be taken back."""
        try:
            if end.query != ATTEND:
                raise BrokenOrdersError(f"it was to attend, and ended {end}")
            if not self._unwanted:
                standing.write([each.order for each in self._lent.values()])
                standing.open(self._term)
            elif standing.close(self._term):
                raise BrokenOrdersError("its orders were opened by itself")
        except BrokenOrdersError as error:
            self._break(standing, worker, error)
            return
        if self._unwanted:
            self._return()
            return
        self._state = _State.LENT
        for tenant in {tenant for tenant, _ in self._lent}:
            self._lanes.refuse(tenant, 0)  # nobody decides about them, which would open the gate little by little
        self._claimed_arrivals.hand_over(self._term, self._lent)

    def _return(self) -> None:
        worker, self._worker, self._state = self._worker, None, _State.OWN
        assert worker is not None
        self._supervisor.release(worker)
