"""Whose block the default policy stops so that an urgent query can run."""

from __future__ import annotations

from math import inf

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.policies.veltair.correction import Corrections, remaining_ns
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.state import SchedulerState


class Preemption:
    """Stops at most one block for each query, so that two queries cannot stop each other without end.

    ::

        preemption = Preemption(corrections)
        victim = preemption.make_room(state, urgent, now_ns)  # the query to stop, or None
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._made_room: set[int] = set()  # queries for which a block was stopped

    @property
    def made_room(self) -> frozenset[int]:
        """The active queries for which a block was stopped."""
        return frozenset(self._made_room)

    def forget(self, query: int) -> None:
        """The query never comes first again: it has ended, or runs in another's batch."""
        self._made_room.discard(query)

    def make_room(self, state: SchedulerState, first: ActiveQuery, now_ns: int) -> ActiveQuery | None:
        """The query whose block is to stop for the one that comes first: one on several cores that is in time on one,
        which it took when it was alone; else the one that has most time and can wait until the other is done, if that
        one would be late by waiting for any block to end.
        """
        if first.query.id in self._made_room or (victim := self._find_victim(state, first, now_ns)) is None:
            return None
        self._made_room.add(first.query.id)
        return victim

    def _find_victim(self, state: SchedulerState, first: ActiveQuery, now_ns: int) -> ActiveQuery | None:
        rest_ns = self._remaining_ns(state, first)
        victim, most, waits = None, float(rest_ns), False
        for active in state.in_flight.values():
            run = active.run
            if run is None:
                continue
            if active.state is not QueryState.RUNNING:
                return None  # one stops already
            left_ns = max(run.ends_ns - now_ns, 0)
            later_ns = self._remaining_ns(state, active) if run.block.stop < active.costs.layers else 0
            laxity = active.due_ns - now_ns - left_ns - later_ns
            if (more := len(run.core_set) - 1) and laxity >= left_ns * more:
                return active
            waits = waits or run.ends_ns + rest_ns <= first.due_ns
            if laxity < 0 and active.tenant.priority <= first.tenant.priority:
                laxity = inf  # late already
            if laxity > most:
                victim, most = active, laxity
        return None if waits else victim

    def _remaining_ns(self, state: SchedulerState, active: ActiveQuery) -> float:
        return remaining_ns(state, active, self._corrections[active.tenant.name])
