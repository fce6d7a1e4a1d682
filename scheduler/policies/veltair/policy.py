"""The product's policy: VELTAIR's blocks and versions, with deadlines kept in mind.

Beyond the paper: the query that must start first goes first, at every block boundary; what cannot be in time is
refused at once, or put last where it has begin_block; profiles are corrected by what is measured; a query that is alone
takes all cores that pay; one in a hurry may stop a block that has time; queries of one tenant that wait run as one
batch where that takes less of the cores.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import TypeAlias

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.batching import growing, spent_ns
from veltair.scheduler.blocks import Budget, form_block, threshold, with_short_rest
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Grow, Policy, Reject, Start, Step, Stop
from veltair.scheduler.policies.tenant_queues import TenantQueues
from veltair.scheduler.policies.veltair.correction import Correction, paying
from veltair.scheduler.running_block import RunningBlock
from veltair.scheduler.state import SchedulerState
from veltair.types import Query, Tenant

PLANNED = 0.85  # of the time left: what remains is for neighbours that come meanwhile
IDLE = 1.3  # what work on hand counts for at arrival: cores lie idle in conflicts and between blocks

_Entry: TypeAlias = tuple[float, int, ActiveQuery]  # latest start, query id


class Veltair(Policy):
    """Queries of a tenant that cannot hold its target even alone on the machine are served after all others, first
    come, first served. None waits for ever: what can be in time starts by its latest start or is refused then, and
    the late are refused when their own deadline can no more be met.
    """

    def __init__(self) -> None:
        self._corrections: defaultdict[str, Correction] = defaultdict(Correction)  # by tenant
        self._arrived: list[ActiveQuery] = []  # not yet looked at
        self._timely: dict[int, list[_Entry]] = {}  # heaps by priority
        self._late: dict[int, ActiveQuery] = {}  # wait, and cannot be in time
        self._batchable = TenantQueues()  # wait, and can, of tenants that batch
        self._made_room: set[int] = set()  # queries for which a block was stopped

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:
        self._arrived.append(active)

    def block_ended(self, active: ActiveQuery, run: RunningBlock, stop: int, elapsed_ns: int) -> None:
        if stop == run.block.stop:
            self._corrections[active.tenant.name].learn(run, elapsed_ns)

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:
        self._late.pop(active.query.id, None)
        self._batchable.discard(active)
        self._made_room.discard(active.query.id)

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        while self._arrived:
            active = self._arrived.pop()
            if (reason := self._refusal(state, active, now_ns)) is not None:
                return Reject(active, reason)
        first, late = None, None
        least: float = inf
        for active in state.between_blocks():
            latest_ns = active.due_ns - self._rest_ns(state, active)
            if latest_ns < now_ns:
                late = late or active
            elif (laxity := (latest_ns - now_ns) / active.tenant.priority) < least:
                first, least = active, laxity
        can_start = len(state.in_flight) < state.workers
        for priority, queue in self._timely.items():
            if (head := self._head(state, queue, now_ns)) is None:
                continue
            latest_ns = queue[0][0]
            if latest_ns < now_ns:
                if state.in_flight or len(state.waiting) > 1:
                    return Reject(head, f"cannot be in time: should have started {_ms(now_ns - latest_ns)} ms ago")
                self._late[head.query.id] = head  # nobody is served better for its being refused
                self._batchable.discard(head)
                heappop(queue)
            elif can_start and (laxity := (latest_ns - now_ns) / priority) < least:
                first, least = head, laxity
        if first is None:
            first = late or (next(iter(self._late.values()), None) if can_start else None)
            if first is not None and now_ns + self._rest_ns(state, first) > _own_deadline_ns(first):
                return Reject(first, "cannot be in time: its deadline can no more be met")
        elif not state.free:
            return self._make_room(state, first, now_ns)
        if not state.free:
            return None
        if first is None:
            return self._grow(state, now_ns)
        if first.tenant.batching and first.query.id in state.waiting:
            self._gather(state, first, now_ns)
        return self._start(state, first, now_ns)

    # What is taken

    def _refusal(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> str | None:
        """Why a query that has just arrived cannot be in time, if so; else it is put where it waits."""
        query, rest_ns = active.query, self._rest_ns(state, active)
        if now_ns + rest_ns > (deadline_ns := _own_deadline_ns(active)):
            return f"cannot be in time: needs {_ms(rest_ns)} ms, {_ms(max(0, deadline_ns - now_ns))} ms are left"
        if rest_ns > active.qos_ns:
            self._late[query.id] = active
            return None
        if (behind_ns := self._behind_ns(state, active, now_ns)) > 0:
            return f"cannot be in time: the queries before it leave it {_ms(behind_ns)} ms short"
        if active.tenant.batching:
            self._batchable.add(active)
        queue = self._timely.setdefault(active.tenant.priority, [])
        heappush(queue, (active.due_ns - rest_ns, query.id, active))
        return None

    def _behind_ns(self, state: SchedulerState, new: ActiveQuery, now_ns: int) -> float:
        """By how much the work on hand would make this query, or one of its or a higher priority that is due later,
        miss its end if all cores went to whoever is due first; above 0 only if something would be missed.
        """
        if state.free and len(state.waiting) == 1 and len(state.in_flight) < state.workers:
            return 0.0
        priority = new.tenant.priority
        work = [
            (active.due_ns, self._core_ns(active, now_ns))
            for active in state.in_flight.values()
            if active.tenant.priority >= priority and active.due_ns > now_ns
        ]
        batched_ns: dict[str, float] = {}  # by tenant
        for active in state.waiting.values():
            tenant = active.tenant
            if tenant.priority >= priority and (active.due_ns > now_ns or active is new):
                core_ns = self._core_ns(active, now_ns)
                if tenant.batching:
                    if tenant.name not in batched_ns:
                        batched_ns[tenant.name] = self._batched_ns(state, tenant)
                    core_ns = min(core_ns, batched_ns[tenant.name] * active.query.batch)
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

    def _core_ns(self, active: ActiveQuery, now_ns: int) -> float:
        """Cores x time of what is left, on the cores that it needs on average."""
        costs, run, left_ns = active.costs, active.run, 0.0
        if active.next_layer < costs.layers:
            cores = active.avg_cores
            time_ns = costs.time_ns(SOLO, cores, active.next_layer, costs.layers)
            left_ns = time_ns * self._corrections[active.tenant.name].of(cores) * cores
        if run is not None and run.ends_ns > now_ns:
            left_ns += (run.ends_ns - now_ns) * len(run.core_set)
        return left_ns

    def _batched_ns(self, state: SchedulerState, tenant: Tenant) -> float:
        """What a sample takes of a core in the largest batch that those that wait now fill, and that is in time."""
        samples, least = self._batchable.samples(tenant), inf
        for costs in state.costs[tenant.model]:
            if costs.profile.batch > samples or costs.least_rest_ns[SOLO][0] > tenant.qos.latency_ns * PLANNED:
                break
            least = min(least, costs.rest_on_one_ns[SOLO][0] / costs.profile.batch)
        return least * self._corrections[tenant.name].one_core

    def _head(self, state: SchedulerState, queue: list[_Entry], now_ns: int) -> ActiveQuery | None:
        """The query that must start first; its latest start is what it is by now."""
        while queue:
            latest_ns, id, active = queue[0]
            if state.waiting.get(id) is not active:  # started, or ended
                heappop(queue)
            elif latest_ns < now_ns and (renewed := active.due_ns - self._rest_ns(state, active)) > latest_ns:
                heapreplace(queue, (renewed, id, active))
            else:
                return active
        return None

    # What is run

    def _gather(self, state: SchedulerState, leader: ActiveQuery, now_ns: int) -> None:
        """Has the query run as a batch with others that wait, if none becomes late and together they take less of the
        cores than one by one, each on one. Of such batches the one that saves most. Nobody waits for company.
        """
        level, correction = state.next_level(now_ns), self._corrections[leader.tenant.name]
        best, most = None, 0.0
        for batch in growing(state, leader, self._batchable.of(leader.tenant)):
            alone_ns = (
                sum(each.costs.rest_on_one_ns[level][0] for each in (leader, *batch.members)) * correction.one_core
            )
            slack_ns = (batch.due_ns - now_ns) * PLANNED
            if (saved_ns := alone_ns - spent_ns(batch.costs, level, slack_ns, correction)) > most:
                best, most = batch, saved_ns
        self._batchable.discard(leader)
        if best is not None:
            for member in best.members:
                self._batchable.discard(member)
                self._made_room.discard(member.query.id)  # it comes first no more; its end may not be told
            state.join(leader, best.members, best.costs)

    def _start(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Start:
        self._late.pop(active.query.id, None)
        costs, start = active.costs, active.next_layer
        level, correction = state.next_level(now_ns), self._corrections[active.tenant.name]
        left_ns = active.due_ns - now_ns
        slack_ns = max(0, left_ns) * PLANNED
        on_one_ns = costs.rest_on_one_ns[level][start] * correction.one_core
        on_several_ns = costs.least_rest_ns[level][start] * correction.several
        several_win = on_several_ns < on_one_ns and costs.cores > 1
        one_does = on_one_ns <= slack_ns or not several_win
        if one_does and several_win and self._is_alone(state):
            cores = paying(costs, start, level, correction)
            state.renew_avg(active, cores)
            return Start(active, active.block(level, costs.layers, cores), level)
        ratio = correction.one_core if one_does else correction.several
        planned_ns = round(slack_ns / ratio)
        avg_cores = 1 if one_does else max(2, costs.cores_for_rest(level, start, planned_ns))
        state.renew_avg(active, avg_cores)
        if left_ns < on_one_ns and left_ns < on_several_ns:
            # Late: as if it had the whole target, fast, but without taking the machine for what is lost.
            cores = min(costs.cores_for_rest(SOLO, 0, active.qos_ns), state.free) if several_win else 1
            return Start(active, active.block(level, costs.layers, cores), level, capped=True)
        work = costs.time_work
        budget = Budget(planned_ns, work[-1] - work[start], work)
        bound = min(avg_cores + threshold(avg_cores, state.total_avg, state.cores), costs.cores)
        formed = form_block(costs, level, start, budget, avg_cores, bound if several_win else 1)
        formed = with_short_rest(formed, costs, budget)
        cores = formed.cores
        if cores == 1 < avg_cores and (
            costs.time_ns(level, 1, start, formed.stop) * correction.one_core > formed.qos_ns * ratio
        ):
            cores = 2  # one would do only if it were as good as several are of late
        return Start(active, active.block(level, formed.stop, cores), level, formed.capped)

    def _grow(self, state: SchedulerState, now_ns: int) -> Grow | None:
        for active in state.wanting():
            if (run := active.run) is not None and (missing := run.missing_cores(now_ns)):
                return Grow(active, min(missing, state.free))
        return None

    def _is_alone(self, state: SchedulerState) -> bool:
        return state.free == state.cores and len(state.in_flight) + len(state.waiting) == 1

    def _make_room(self, state: SchedulerState, first: ActiveQuery, now_ns: int) -> Stop | None:
        """Stops a block for the query that comes first: one on several cores that is in time on one, which it took when
        it was alone; else the one whose query has most time and can wait until the other is done, if that one would be
        late by waiting for any to end. No query makes room twice, lest two stop each other for ever.
        """
        if first.query.id in self._made_room or (stopped := self._who_can_wait(state, first, now_ns)) is None:
            return None
        self._made_room.add(first.query.id)
        return Stop(stopped)

    def _who_can_wait(self, state: SchedulerState, first: ActiveQuery, now_ns: int) -> ActiveQuery | None:
        rest_ns = self._rest_ns(state, first)
        stopped, most, waits = None, float(rest_ns), False
        for active in state.in_flight.values():
            run = active.run
            if run is None:
                continue
            if run.stopping:
                return None
            left_ns = max(run.ends_ns - now_ns, 0)
            later_ns = self._rest_ns(state, active) if run.block.stop < active.costs.layers else 0
            laxity = active.due_ns - now_ns - left_ns - later_ns
            if (more := len(run.core_set) - 1) and laxity >= left_ns * more:
                return active
            waits = waits or run.ends_ns + rest_ns <= first.due_ns
            if laxity < 0 and active.tenant.priority <= first.tenant.priority:
                laxity = inf  # late already
            if laxity > most:
                stopped, most = active, laxity
        return None if waits else stopped

    def _rest_ns(self, state: SchedulerState, active: ActiveQuery) -> float:
        """What is left of the query after the block that runs, on the cores on which that is fastest."""
        costs, start, correction = active.costs, active.next_layer, self._corrections[active.tenant.name]
        level = state.steady.index if state.in_flight else SOLO
        on_one_ns = costs.rest_on_one_ns[level][start] * correction.one_core
        return min(on_one_ns, costs.least_rest_ns[level][start] * correction.several)


def _own_deadline_ns(active: ActiveQuery) -> float:
    """The deadline that came with the query, or the last of its batch's; infinite if one has merely the end of the
    tenant's target."""
    return max(_asked_ns(each.query, active.tenant) for each in active.awaited())


def _asked_ns(query: Query, tenant: Tenant) -> float:
    return inf if query.deadline_ns == query.arrival_ns + tenant.qos.latency_ns else query.deadline_ns


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3g}"
