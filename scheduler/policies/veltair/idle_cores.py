"""Cores that fall idle: the default policy gives them to blocks that run, while nobody waits for any."""

from __future__ import annotations

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.policies.veltair.contention import Contention
from veltair.scheduler.policies.veltair.correction import Corrections
from veltair.scheduler.policies.veltair.patience import Patience
from veltair.scheduler.policies.veltair.sizing import cores_that_pay
from veltair.scheduler.policies.veltair.slow_cores import SlowCores
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.running_block import RunningBlock
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Grow, Stop

WORTH_A_CHANGE_NS = (
    1_000_000  # several times what it costs to stop a block and start it again, or to wake its new cores
)
MUCH_MORE = 1.5  # times the cores that a block has


class IdleCores:
    """Gives idle cores to the block that would end last, if they end it earlier.

    It takes them up between two layers. One that is alone on the machine starts again on them instead, with the code
    versions that are best there; at most once for each query.

    ::

        idle = IdleCores(corrections, slow, patience)
        step = idle.find_use(state, contention, now_ns)  # None: there is none
    """

    def __init__(self, corrections: Corrections, slow: SlowCores, patience: Patience) -> None:
        self._corrections, self._slow, self._patience = corrections, slow, patience
        self._stopped: set[int] = set()  # queries that started again

    def forget(self, query: int) -> None:
        """The query has ended."""
        self._stopped.discard(query)

    def find_use(self, state: SchedulerState, contention: Contention, now_ns: int) -> Grow | Stop | None:
        """What to do with cores that nobody waits for; None if no block runs that gains enough, or if one stops."""
        free = self._slow.fast_free(state)
        if not free or (active := _last_to_end(state)) is None or (run := active.run) is None:
            return None
        if run.ends_ns - now_ns <= WORTH_A_CHANGE_NS:
            return None
        is_alone = len(state.in_flight) == 1
        if is_alone and (contention.is_high or active.query.id in self._stopped):
            return None
        cores = self._cores_worth_having(state, active, run, free, contention, now_ns)
        if cores is None:
            return None
        if is_alone:
            self._stopped.add(active.query.id)
            return Stop(active)
        have = len(run.core_set)
        return Grow(active, cores - have, self._slow.cores) if cores >= MUCH_MORE * have else None

    def _cores_worth_having(
        self,
        state: SchedulerState,
        active: ActiveQuery,
        run: RunningBlock,
        free: int,
        contention: Contention,
        now_ns: int,
    ) -> int | None:
        """On how many cores the rest of the block ends enough earlier; None if on none."""
        start, stop, have = run.layer_at(now_ns) + 1, run.block.stop, len(run.core_set)
        if start >= stop:
            return None
        costs, correction = run.costs, self._corrections[active.tenant.name]
        cores = min(cores_that_pay(costs, start, run.level, correction, contention), have + free)
        if cores > have:
            cores = min(cores, have + free - self._patience.kept(state, active, costs, start, cores, now_ns))
        if cores <= have:
            return None
        here_ns = costs.time_ns(run.level, have, start, stop) * correction.ratio(have)
        there_ns = costs.time_ns(run.level, cores, start, stop) * correction.several
        return cores if here_ns - there_ns > WORTH_A_CHANGE_NS else None


def _last_to_end(state: SchedulerState) -> ActiveQuery | None:
    """The query whose block ends last; None where a block is stopping, whose query wants cores in a moment."""
    last, ends_ns = None, 0
    for active in state.in_flight.values():
        if active.run is None:
            continue
        if active.state is not QueryState.RUNNING:
            return None
        if active.run.ends_ns > ends_ns:
            last, ends_ns = active, active.run.ends_ns
    return last
