"""Clockwork (OSDI'20): a query that cannot be in time is dropped before it starts, the others go by their latest
start, in batches as large as deadlines and demand allow.
"""

from __future__ import annotations

from veltair.errors import RefusalReason
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.batching import Batch, candidate_batches
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.policies.tenant_queues import TenantQueues
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Reject, Start, Step


class Clockwork(Policy):
    """A queue for each tenant; the head with the least deadline minus estimate starts next, and no other passes it.

    Executions are predictable, because nothing is preempted and everything is timed beforehand: a query or a batch
    runs as a whole, on the fewest cores that are in time from now. The estimate is that of the cores on which the
    model is fastest. Heads that cannot make it on any number are dropped.

    It fails where times are not those of the profile: under interference its estimates are too short, and queries
    that it has started end late. A head that needs many cores keeps the free ones idle.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("clockwork")).__name__
    'Clockwork'
    """

    def __init__(self) -> None:
        self._queues = TenantQueues()

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:
        self._queues.add(active)

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:
        self._queues.discard(active)

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        for active in state.between_blocks():  # one that was stopped from outside goes on
            return _start(active, None, state, now_ns)
        first: ActiveQuery | None = None
        first_ns = 0
        for head in self._queues.heads():
            latest_ns = head.due_ns - head.costs.least_rest_ns[SOLO][0]  # to start
            if latest_ns < now_ns:
                return Reject(head, RefusalReason.OVERDUE)
            if first is None or latest_ns < first_ns:
                first, first_ns = head, latest_ns
        if first is None or len(state.in_flight) >= state.workers:
            return None
        largest = None
        for batch in candidate_batches(state.costs, first, self._queues.queue(first.tenant)):
            cores = batch.costs.cores_to_end(SOLO, 0, batch.due_ns - now_ns)
            if cores is not None and cores <= state.free:
                largest = batch
        step = _start(first, largest, state, now_ns)
        if step is not None:
            for started in (first, *step.members):
                self._queues.discard(started)
        return step


def _start(active: ActiveQuery, batch: Batch | None, state: SchedulerState, now_ns: int) -> Start | None:
    members, costs, due_ns = batch or Batch((), active.costs, active.due_ns)
    start = active.next_layer
    cores = costs.cores_to_end(SOLO, start, due_ns - now_ns)
    if cores is None:
        cores = costs.fastest_cores(SOLO, start, costs.layers, costs.cores)
    if cores > state.free:
        return None
    block = active.next_block(SOLO, costs.layers, cores, costs)
    return Start(active, block, SOLO, members=members, costs=costs)
