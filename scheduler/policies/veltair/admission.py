"""Where the default policy refuses a query: on arrival, at its latest start, or past its own deadline."""

from __future__ import annotations

from bisect import bisect_left
from math import inf

from veltair.errors import RefusalReason
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.veltair.backlog import SampleCosts, WaitingKind
from veltair.scheduler.policies.veltair.correction import Corrections, remaining_core_ns, remaining_ns
from veltair.scheduler.policies.veltair.fair_share import FairShare
from veltair.scheduler.policies.veltair.reserve import Reserve
from veltair.scheduler.policies.veltair.sizing import PLANNED
from veltair.scheduler.policies.veltair.slow_cores import SlowCores
from veltair.scheduler.policies.veltair.waiting_queries import WaitingQueries
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Reject
from veltair.types import Tenant

RETRY = 4  # targets: after so long without a query of its own a tenant gets one in, whatever is known of it
IDLE = 1.3  # what work on one core counts for at arrival: others lie idle meanwhile, and between blocks


class ArrivalCheck:
    """Takes or refuses the queries that have just arrived, by the time that they need and the work before them.

    A query is refused at once if its own deadline cannot be met even alone, or if the queries before it leave it too
    little time. One that cannot hold its tenant's target even alone is taken, but as late, unless by its profile it
    could: then others have taken the cores, and it is refused while they are there. A tenant that has been refused for
    long gets a query in from time to time, since only blocks that run tell whether it still has to be.

    ::

        check = ArrivalCheck(corrections, waiting, Reserve(), SlowCores(corrections), FairShare())
        refused = check.refuse(state, active, now_ns)  # None: `waiting` has it now
    """

    def __init__(
        self,
        corrections: Corrections,
        waiting: WaitingQueries,
        reserve: Reserve,
        slow: SlowCores,
        fair: FairShare,
    ) -> None:
        self._corrections, self._waiting, self._reserve, self._slow = corrections, waiting, reserve, slow
        self._fair = fair
        self._sample_costs: dict[str, SampleCosts] = {}  # by tenant, of those that batch
        self._admitted_ns: dict[str, int] = {}  # by tenant: the last one, or the first refusal

    def is_in_time(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> bool:
        """Whether a query that has just arrived holds its target and its own deadline if it starts now."""
        rest_ns = remaining_ns(state, active, self._corrections[active.tenant.name])
        if rest_ns > active.qos_ns or active.due_ns - rest_ns < now_ns:
            return False
        return now_ns + rest_ns <= own_deadline_ns(active)

    def refuse(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Reject | None:
        """Gives up a query that has just arrived and cannot be in time; any other joins the waiting ones."""
        rest_ns = remaining_ns(state, active, self._corrections[active.tenant.name])
        if now_ns + rest_ns > own_deadline_ns(active):
            return Reject(active, RefusalReason.NO_TIME)
        self._waiting.backlog.add(active)
        if rest_ns > active.qos_ns:
            slowed_down = active.costs.least_rest_ns[SOLO][active.next_layer] <= active.qos_ns
            if slowed_down and _serves_others(state) and not self._is_shut_out(active, now_ns):
                return Reject(active, RefusalReason.OVERLOAD)
            self._waiting.add_late(active)
            self._admitted_ns[active.tenant.name] = now_ns
            return None
        lacking_ns = self._lacking_ns(state, active, rest_ns, now_ns)
        short = lacking_ns > 0 and self._fair.is_short(active.tenant, now_ns)
        by_others = short and self._lacking_ns(state, active, rest_ns, now_ns, own=True) <= 0
        self._fair.decided(active.tenant, now_ns, refused=by_others)
        if lacking_ns > 0 and not self._is_shut_out(active, now_ns):
            arrival_ns = active.query.arrival_ns
            # One that arrives later is due as much later, and meanwhile the work on hand, which counts more, shrinks.
            alike_ns = lacking_ns - (now_ns - arrival_ns) if active.due_ns - arrival_ns == active.qos_ns else 0
            if short:
                alike_ns = 0  # each of its queries is decided about: what is kept free of others follows its refusals
            return Reject(active, RefusalReason.OVERLOAD, for_ns=max(0, int(alike_ns / IDLE)))
        self._waiting.add_timely(active, active.due_ns - rest_ns)
        self._admitted_ns[active.tenant.name] = now_ns
        return None

    def _is_shut_out(self, active: ActiveQuery, now_ns: int) -> bool:
        """Whether no query of the tenant has been admitted for long: nothing would ever tell that its blocks are not as
        slow any more.
        """
        name = active.tenant.name
        if now_ns - self._admitted_ns.setdefault(name, now_ns) < RETRY * active.qos_ns:
            return False
        self._reserve.relax(name)
        return True

    def _lacking_ns(
        self, state: SchedulerState, new: ActiveQuery, rest_ns: float, now_ns: int, *, own: bool = False
    ) -> float:
        """By how much the work on hand would make this query, or one of its or a higher priority that is due later,
        miss its end if all cores went to the query that is due first; above 0 only if something would be missed.
        Its own tenant's queries go before it or after it by their levels, whenever they are due. `own`: if there were
        no work but its own tenant's.
        """
        if len(state.waiting) == 1 and len(state.in_flight) < state.workers and self._slow.fast_free(state):
            return 0.0
        priority, due_ns, cores = new.tenant.priority, new.due_ns, self._slow.capacity(state)
        running = self._running_work(state, priority, new.tenant if own else None, now_ns)
        ahead_ns, waiting, level = 0.0, [], new.query.priority_level
        for kind in self._waiting.backlog.kinds():
            if kind.tenant.priority < priority or (own and kind.tenant is not new.tenant):
                continue
            dues, core_ns = kind.due_after(now_ns), self._core_ns(state, kind)
            if kind.level == level or kind.tenant is not new.tenant:
                waiting.append((dues, core_ns))
            elif kind.level < level:
                ahead_ns += len(dues) * core_ns
        if due_ns <= now_ns:
            waiting.append(([due_ns], self._core_ns(state, self._waiting.backlog.kind_of(new))))
        all_ns = ahead_ns + sum([core_ns for _, core_ns in running])
        all_ns += sum([len(dues) * core_ns for dues, core_ns in waiting])
        kept_ns = self._fair.spare_ns(new.tenant, new.qos_ns - rest_ns, now_ns)
        begin_ns = now_ns + max(self._reserve.spare_ns(new, rest_ns), kept_ns)
        end_ns = begin_ns + all_ns / cores
        if end_ns <= due_ns:
            return 0.0  # all of it is done by then
        before_ns = ahead_ns + sum([core_ns for due, core_ns in running if due < due_ns])
        work = [entry for entry in running if entry[0] >= due_ns]
        for dues, core_ns in waiting:
            first = bisect_left(dues, due_ns)
            before_ns += first * core_ns
            work += [(due, core_ns) for due in dues[first : bisect_left(dues, end_ns, first)]]  # the rest is in time
        work.sort()
        done_ns, worst = begin_ns + before_ns / cores, 0.0
        for due, core_ns in work:
            done_ns += core_ns / cores
            if done_ns - due > worst:
                worst = done_ns - due
        return worst

    def forget(self, tenant: str) -> None:
        """The tenant is gone."""
        self._sample_costs.pop(tenant, None)
        self._admitted_ns.pop(tenant, None)

    def _running_work(
        self, state: SchedulerState, priority: int, of: Tenant | None, now_ns: int
    ) -> list[tuple[int, float]]:
        """Of the queries in flight of at least this priority, and of one tenant or all, that can still be in time: when
        each is due, and what is left of it, as `counted_ns`.
        """
        work: list[tuple[int, float]] = []
        for active in state.in_flight.values():
            due_ns, run = active.due_ns, active.run
            if due_ns <= now_ns or active.tenant.priority < priority or (of is not None and active.tenant is not of):
                continue
            if run is None or active.next_layer < active.costs.layers:
                core_ns = remaining_core_ns(active, self._corrections[active.tenant.name], now_ns)
                work.append((due_ns, counted_ns(core_ns, active.avg_cores)))
            elif run.ends_ns > now_ns:
                work.append((due_ns, counted_ns(run.core_ns_left(now_ns), active.avg_cores)))
        return work

    def _core_ns(self, state: SchedulerState, kind: WaitingKind) -> float:
        """What one waiting query of the kind counts for (`counted_ns`), or its part of the largest batch that the
        waiting queries fill now and that is in time.
        """
        tenant = kind.tenant
        correction = self._corrections[tenant.name]
        core_ns = counted_ns(kind.core_ns(correction), kind.cores)
        if not tenant.batching:
            return core_ns
        costs = self._sample_costs.get(tenant.name)
        if costs is None:
            costs = SampleCosts(state.costs[tenant.model], tenant.qos.latency_ns * PLANNED)
            self._sample_costs[tenant.name] = costs
        sample_ns = costs.least_ns(self._waiting.batchable.count_samples(tenant)) * correction.one_core
        return min(core_ns, counted_ns(sample_ns * kind.samples, 1))


def counted_ns(core_ns: float, cores: int) -> float:
    """The cores x time that work takes from the machine, if it needs so many cores on average. Blocks that pay on
    several cores fill idle ones.

    >>> counted_ns(100, cores=1), counted_ns(100, cores=8)
    (130.0, 100)
    """
    return IDLE * core_ns if cores == 1 else core_ns


def is_overdue(state: SchedulerState, latest_ns: float, now_ns: int) -> bool:
    """Whether a query that should have started by `latest_ns` is given up: not if nobody is served better by that."""
    return latest_ns < now_ns and _serves_others(state)


def _serves_others(state: SchedulerState) -> bool:
    """Whether there are queries besides the one in question, which waits."""
    return bool(state.in_flight) or len(state.waiting) > 1


def has_waited_long(active: ActiveQuery, now_ns: int) -> bool:
    """Whether a query that has begun is late by more than another target, though alone it could have been in time."""
    return now_ns > active.due_ns + active.qos_ns and active.costs.least_rest_ns[SOLO][0] <= active.qos_ns


def misses_deadline(state: SchedulerState, active: ActiveQuery, corrections: Corrections, now_ns: int) -> bool:
    """Whether a late query is given up before its next block: its own deadline cannot be met."""
    return now_ns + remaining_ns(state, active, corrections[active.tenant.name]) > own_deadline_ns(active)


def own_deadline_ns(active: ActiveQuery) -> float:
    """The deadline that came with the query, or the last of its batch's; infinite if one came without."""
    if not active.members and active.query.deadline_ns is None:
        return inf
    latest_ns = 0
    for each in active.live_queries:
        deadline_ns = each.query.deadline_ns
        if deadline_ns is None:
            return inf
        latest_ns = max(latest_ns, deadline_ns)
    return latest_ns
