"""A query that others have left alone on the machine: the default policy gives it their cores."""

from __future__ import annotations

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.policies.veltair.contention import Contention
from veltair.scheduler.policies.veltair.correction import Corrections
from veltair.scheduler.policies.veltair.sizing import cores_that_pay
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.state import SchedulerState

WORTH_A_STOP_NS = 1_000_000  # several times what it costs to stop a block and to start it again


class LoneQuery:
    """Stops a block that more cores would end earlier, so that it starts again on them; at most one of each query.

    ::

        lone = LoneQuery(corrections)
        victim = lone.find(state, contention, now_ns)  # the query to stop, or None
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._stopped: set[int] = set()

    def forget(self, query: int) -> None:
        """The query has ended."""
        self._stopped.discard(query)

    def find(self, state: SchedulerState, contention: Contention, now_ns: int) -> ActiveQuery | None:
        """The query to stop; None while others are there, while queries meet often, or if little is gained."""
        if contention.is_high or len(state.in_flight) != 1 or not state.free:
            return None
        (active,) = state.in_flight.values()
        run = active.run
        if run is None or active.state is not QueryState.RUNNING or active.query.id in self._stopped:
            return None
        if run.ends_ns - now_ns <= WORTH_A_STOP_NS:
            return None
        start, stop, have = run.layer_at(now_ns) + 1, run.block.stop, len(run.core_set)
        if start >= stop:
            return None
        costs, correction = run.costs, self._corrections[active.tenant.name]
        cores = cores_that_pay(costs, start, run.level, correction, contention)
        if cores <= have:
            return None
        here_ns = costs.time_ns(run.level, have, start, stop) * correction.ratio(have)
        there_ns = costs.time_ns(run.level, cores, start, stop) * correction.several
        if here_ns - there_ns <= WORTH_A_STOP_NS:
            return None
        self._stopped.add(active.query.id)
        return active
