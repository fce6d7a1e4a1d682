"""Whose block the default policy stops so that an urgent query can run."""

from __future__ import annotations

from math import ceil, inf

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
        """The query whose block is to stop for the one that comes first: the one with the most cores beyond those on
        which it is in time, which it took while nobody wanted them; else the one that has most time and can wait until
        the other is done, if that one would be late by waiting for any block to end.
        """
        if first.query.id in self._made_room or (victim := self._find_victim(state, first, now_ns)) is None:
            return None
        self._made_room.add(first.query.id)
        return victim

    def make_room_to_grow(self, state: SchedulerState, now_ns: int) -> ActiveQuery | None:
        """The query whose block is to stop for a running one that has fewer cores than it wanted: the one with the most
        cores beyond those on which it is in time. A running one that would be late on the cores that it has may also
        stop one that can wait.
        """
        for active in state.wanting_cores():
            if active.missing_cores(now_ns) and (victim := self.make_room(state, active, now_ns)) is not None:
                return victim
        return None

    def find_short(self, state: SchedulerState, now_ns: int) -> ActiveQuery | None:
        """The query that gets the cores on which a block was stopped for it: its own runs on too few to be in time."""
        for active in state.wanting_cores() if self._made_room else ():
            if active.query.id in self._made_room and active.missing_cores(now_ns) and self._is_short(state, active):
                return active
        return None

    def _is_short(self, state: SchedulerState, active: ActiveQuery) -> bool:
        """Whether a running query would be late on the cores that it has."""
        run = active.run
        return run is not None and run.ends_ns + self._later_ns(state, active) > active.due_ns

    def _later_ns(self, state: SchedulerState, active: ActiveQuery) -> float:
        """What a query takes after the block that runs."""
        return self._remaining_ns(state, active) if active.next_layer < active.costs.layers else 0.0

    def _find_victim(self, state: SchedulerState, first: ActiveQuery, now_ns: int) -> ActiveQuery | None:
        rest_ns = self._later_ns(state, first)
        if (own := first.run) is not None:  # what is left of its block takes so long on the cores that it wanted
            rest_ns += max(own.ends_ns - now_ns, 0) * len(own.core_set) / own.block.cores
        victim, most, waits = None, rest_ns, False
        rich, most_spare = None, 0
        for active in state.in_flight.values():
            run = active.run
            if run is None or active is first:
                continue
            if active.state is not QueryState.RUNNING:
                return None  # one stops already
            left_ns = max(run.ends_ns - now_ns, 0)
            later_ns = self._later_ns(state, active)
            laxity = active.due_ns - now_ns - left_ns - later_ns
            if (spare := spare_cores(len(run.core_set), left_ns, laxity)) > most_spare:
                rich, most_spare = active, spare
            waits = waits or run.ends_ns + rest_ns <= first.due_ns
            if laxity < 0 and active.tenant.priority <= first.tenant.priority:
                laxity = inf  # late already
            if laxity > most:
                victim, most = active, laxity
        in_time = first.run is not None and not self._is_short(state, first)
        return rich or (None if waits or in_time else victim)

    def _remaining_ns(self, state: SchedulerState, active: ActiveQuery) -> float:
        return remaining_ns(state, active, self._corrections[active.tenant.name])


def spare_cores(cores: int, left_ns: int, laxity: float) -> int:
    """How many of its cores a block could do without and be in time, as if its time went with 1 / cores.

    `left_ns`: what it takes until its end. `laxity`: what its query has left after that, in ns.

    >>> spare_cores(8, left_ns=10, laxity=30.0)  # on two cores it ends after 40
    6
    """
    return cores - max(1, ceil(cores * left_ns / (left_ns + laxity))) if laxity >= 0 and left_ns else 0
