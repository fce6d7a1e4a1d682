"""Planaria's scheduler (MICRO'20): the machine is divided again among all queries when one arrives or ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Grow, Start, Step, Stop
from veltair.types import Record


class PlanariaTask(Record, frozen=True):
    """A query that wants a share of the cores: where it stands and what it needs to be in time; times in ns.

    ::

        PlanariaTask(active, active.next_layer, slack_ns=2_000_000, least=4).rest_ns  # on 4 cores
    """

    active: ActiveQuery
    start: int  # the layer that it stands at
    slack_ns: int
    least: int | None  # m_i: the fewest cores that are in time

    @property
    def rest_ns(self) -> int:
        """What is left of it, on those or on all."""
        costs = self.active.costs
        return costs.time_ns(SOLO, self.least or costs.cores, self.start, costs.layers)


class Planaria(Policy):
    """Every query has the whole rest of its model as its block, stopped at the next layer when its share changes.

    A new share waits for the cores that others still hold, or starts with what is free of it. Queries that cannot
    be in time get nothing while another can; none is refused, and no query is sure to start.

    It fails when queries arrive faster than layers end: each arrival stops blocks on all cores, and what remains of
    a query's time goes into stopping and starting.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("planaria")).__name__
    'Planaria'
    """

    def __init__(self, *, sheds_late: bool = True) -> None:
        """`sheds_late`: as in MICRO'20, queries that cannot be in time get nothing while another can. Else each counts
        as due at the earliest time at which it can end.
        """
        self._sheds_late = sheds_late
        self._shares: dict[int, int] = {}  # cores by query
        self._cut_for = -1  # workers; -1: a query came or went since
        self._astray: Iterator[ActiveQuery] = iter(())  # run on another number of cores

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:
        self._cut_for = -1

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:
        self._cut_for = -1

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        if self._cut_for != state.workers:
            self._cut_for = state.workers
            servable = (*state.in_flight.values(), *_startable(state))
            self._shares = share_cores([self._task(active, now_ns) for active in servable], state.cores)
            self._astray = self._find_astray(state)
        if (astray := next(self._astray, None)) is not None:
            return Stop(astray)
        if not state.free:
            return None
        for active in state.wanting_cores():
            if active.run is not None:
                if missing := active.missing_cores(now_ns):
                    return Grow(active, min(missing, state.free))
            elif share := self._shares[active.query.id]:
                return _start(active, share)
        for active in _startable(state):
            if share := self._shares[active.query.id]:
                return _start(active, share)
        return None

    def _task(self, active: ActiveQuery, now_ns: int) -> PlanariaTask:
        run, slack_ns, costs = active.run, active.due_ns - now_ns, active.costs
        start = active.next_layer if run is None else run.layer_at(now_ns)
        if not self._sheds_late:
            slack_ns = max(slack_ns, costs.least_rest_ns[SOLO][start])
        least = costs.cores_to_end(SOLO, start, slack_ns) if slack_ns > 0 else None
        return PlanariaTask(active, start, slack_ns, least)

    def _find_astray(self, state: SchedulerState) -> Iterator[ActiveQuery]:
        for active in state.in_flight.values():
            run = active.run
            if (
                run is not None
                and run.block.cores != self._shares[active.query.id]
                and active.state is QueryState.RUNNING
            ):
                yield active


def _startable(state: SchedulerState) -> Iterator[ActiveQuery]:
    """The waiting queries, in order of arrival, as many as there are workers for."""
    return islice(state.waiting.values(), max(0, state.workers - len(state.in_flight)))


def share_cores(tasks: list[PlanariaTask], cores: int) -> dict[int, int]:
    """Cores by query id; at most `cores` together, and at least one query gets some (scheduler.py of planaria.code)."""
    granted = {task.active.query.id: task.least or 0 for task in tasks}
    spare = cores - sum(granted.values())
    feasible = [
        (task.active.tenant.priority / (task.slack_ns * task.least), task) for task in tasks if task.least is not None
    ]
    if not feasible or (len(feasible) == len(tasks) and spare >= 0):
        _spread(granted, tasks, spare)
        return granted
    feasible.sort(key=itemgetter(0), reverse=True)
    left = cores
    for _, task in feasible:
        id = task.active.query.id
        granted[id] = min(granted[id], left)
        left -= granted[id]
    return granted


def _spread(granted: dict[int, int], tasks: list[PlanariaTask], spare: int) -> None:
    """Grant spare cores in proportion to priority over what is left, the highest first; what rounding leaves goes to
    the highest priority. Nobody gets more than the profile measured.
    """
    scored = [(task.active.tenant.priority / task.rest_ns, task.active) for task in tasks]
    total = sum([score for score, _ in scored])
    scored.sort(key=itemgetter(0), reverse=True)
    left = spare
    for score, active in scored:
        id = active.query.id
        more = min(round(spare * score / total), left, active.costs.cores - granted[id])
        granted[id] += more
        left -= more
    if left:
        for _, active in sorted(scored, key=lambda scored: -scored[1].tenant.priority):
            id = active.query.id
            more = min(left, active.costs.cores - granted[id])
            granted[id] += more
            left -= more


def _start(active: ActiveQuery, share: int) -> Start:
    return Start(active, active.next_block(SOLO, active.costs.layers, share), SOLO)
