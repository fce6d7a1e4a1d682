"""Where the default policy refuses a query: on arrival, at its latest start, or past its own deadline."""

from __future__ import annotations

from math import inf

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.veltair.correction import Corrections, remaining_core_ns, remaining_ns
from veltair.scheduler.policies.veltair.sizing import PLANNED
from veltair.scheduler.policies.veltair.waiting_queries import WaitingQueries
from veltair.scheduler.state import SchedulerState
from veltair.types import Tenant

IDLE = 1.3  # what work on hand counts for at arrival: cores lie idle in conflicts and between blocks


class ArrivalCheck:
    """Takes or refuses the queries that have just arrived, by the time that they need and the work before them.

    A query is refused at once if its own deadline cannot be met even alone, or if the queries before it leave it too
    little time. One that cannot hold its tenant's target even alone is taken, but as late.

    ::

        check = ArrivalCheck(corrections, waiting)
        reason = check.refuse(state, active, now_ns)  # None: `waiting` has it now
    """

    def __init__(self, corrections: Corrections, waiting: WaitingQueries) -> None:
        self._corrections, self._waiting = corrections, waiting

    def refuse(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> str | None:
        """Why a query that has just arrived cannot be in time, if so; else it joins the waiting ones."""
        rest_ns = remaining_ns(state, active, self._corrections[active.tenant.name])
        if now_ns + rest_ns > (deadline_ns := own_deadline_ns(active)):
            return f"cannot be in time: needs {ms(rest_ns)} ms, {ms(max(0, deadline_ns - now_ns))} ms are left"
        if rest_ns > active.qos_ns:
            self._waiting.add_late(active)
            return None
        if (lacking_ns := self._lacking_ns(state, active, now_ns)) > 0:
            return f"cannot be in time: the queries before it leave it {ms(lacking_ns)} ms short"
        self._waiting.add_timely(active, active.due_ns - rest_ns)
        return None

    def _lacking_ns(self, state: SchedulerState, new: ActiveQuery, now_ns: int) -> float:
        """By how much the work on hand would make this query, or one of its or a higher priority that is due later,
        miss its end if all cores went to the query that is due first; above 0 only if something would be missed.
        """
        if state.free and len(state.waiting) == 1 and len(state.in_flight) < state.workers:
            return 0.0
        priority = new.tenant.priority
        work = [
            (active.due_ns, remaining_core_ns(active, self._corrections[active.tenant.name], now_ns))
            for active in state.in_flight.values()
            if active.tenant.priority >= priority and active.due_ns > now_ns
        ]
        sample_ns: dict[str, float] = {}  # by tenant
        for active in state.waiting.values():
            tenant = active.tenant
            if tenant.priority >= priority and (active.due_ns > now_ns or active is new):
                core_ns = remaining_core_ns(active, self._corrections[tenant.name], now_ns)
                if tenant.batching:
                    if tenant.name not in sample_ns:
                        sample_ns[tenant.name] = self._batched_sample_ns(state, tenant)
                    core_ns = min(core_ns, sample_ns[tenant.name] * active.query.batch)
                work.append((active.due_ns, core_ns))
        if now_ns + IDLE * sum([core_ns for _, core_ns in work]) / state.cores <= new.due_ns:
            return 0.0  # all of it is done by then
        work.sort()
        done_ns, worst = float(now_ns), 0.0
        for due_ns, core_ns in work:
            done_ns += IDLE * core_ns / state.cores
            if due_ns >= new.due_ns and done_ns - due_ns > worst:
                worst = done_ns - due_ns
        return worst

    def _batched_sample_ns(self, state: SchedulerState, tenant: Tenant) -> float:
        """The core time of one sample in the largest batch that the waiting queries fill now and that is in time."""
        samples, least = self._waiting.batchable.count_samples(tenant), inf
        for costs in state.costs[tenant.model]:
            if costs.profile.batch > samples or costs.least_rest_ns[SOLO][0] > tenant.qos.latency_ns * PLANNED:
                break
            least = min(least, costs.rest_on_one_ns[SOLO][0] / costs.profile.batch)
        return least * self._corrections[tenant.name].one_core


def refuse_overdue(state: SchedulerState, latest_ns: float, now_ns: int) -> str | None:
    """Why a query that should have started by `latest_ns` is refused; None if nobody is served better by that."""
    if latest_ns >= now_ns or not (state.in_flight or len(state.waiting) > 1):
        return None
    return f"cannot be in time: should have started {ms(now_ns - latest_ns)} ms ago"


def refuse_past_deadline(
    state: SchedulerState, active: ActiveQuery, corrections: Corrections, now_ns: int
) -> str | None:
    """Why a late query is refused before its next block, if its own deadline cannot be met."""
    if now_ns + remaining_ns(state, active, corrections[active.tenant.name]) > own_deadline_ns(active):
        return "cannot be in time: its deadline cannot be met any more"
    return None


def own_deadline_ns(active: ActiveQuery) -> float:
    """The deadline that came with the query, or the last of its batch's; infinite if one came without."""
    latest_ns = 0
    for each in active.live_queries():
        deadline_ns = each.query.deadline_ns
        if deadline_ns is None:
            return inf
        latest_ns = max(latest_ns, deadline_ns)
    return latest_ns


def ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3g}"
