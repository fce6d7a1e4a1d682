"""The default policy: VELTAIR's blocks and versions, with deadlines kept in mind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import inf

from veltair.errors import RefusalReason
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.policies.veltair.admission import ArrivalCheck, has_waited_long, is_overdue, misses_deadline
from veltair.scheduler.policies.veltair.batching import choose_batch
from veltair.scheduler.policies.veltair.contention import Contention
from veltair.scheduler.policies.veltair.correction import Correction, Corrections, remaining_ns
from veltair.scheduler.policies.veltair.fair_share import FairShare
from veltair.scheduler.policies.veltair.idle_cores import IdleCores
from veltair.scheduler.policies.veltair.patience import Patience
from veltair.scheduler.policies.veltair.preemption import Preemption
from veltair.scheduler.policies.veltair.reserve import Reserve
from veltair.scheduler.policies.veltair.sizing import size_block
from veltair.scheduler.policies.veltair.slow_cores import SlowCores
from veltair.scheduler.policies.veltair.waiting_queries import WaitingQueries
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.running_block import RunningBlock
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Grow, Reject, Start, Step, Stop


class Veltair(Policy):
    """Starts the query with the least laxity (time until its latest start, over its priority) at every block boundary.

    Beyond the paper: a query that cannot be in time is refused at once, or put last where it has begun (`admission`);
    profiles are corrected by what is measured (`correction`); a query that is alone takes all cores that pay, which
    are fewer while queries meet often (`sizing`, `contention`); cores that fall idle go to blocks that run
    (`idle_cores`); an urgent query may stop a block that has time (`preemption`); waiting queries of one tenant run as
    one batch where that takes less of the cores (`batching`).

    A tenant's queries start in the order of their priority levels; the latest start orders those of one level.

    Queries of a tenant that cannot hold its target even alone on the machine are served after all others, first
    come, first served. No query waits without end: one that can be in time starts by its latest start or is refused
    then, a late one is refused when its own deadline cannot be met any more, and one that has begun and ended up late
    goes on before others once it is late by another target, since it holds a worker.

    It fails where the profile does: a model whose time varies much from query to query has a latest start that is too
    late for its slow queries, and the correction follows only their mean. Late tenants starve while others load the
    machine fully.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("veltair")).__name__
    'Veltair'
    """

    starts_unasked = refuses = True

    def __init__(self) -> None:
        self._corrections: Corrections = defaultdict(Correction)
        self._arrived: list[ActiveQuery] = []  # not checked yet
        self._waiting = WaitingQueries(self._corrections)
        self._reserve = Reserve()
        self._slow = SlowCores(self._corrections)
        self._fair = FairShare()
        self._arrival_check = ArrivalCheck(self._corrections, self._waiting, self._reserve, self._slow, self._fair)
        self._preemption = Preemption(self._corrections)
        self._contention = Contention()
        self._patience = Patience(self._corrections)
        self._idle = IdleCores(self._corrections, self._slow, self._patience)

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:
        self._arrived.append(active)
        self._patience.arrived(active, now_ns)

    def block_ended(self, active: ActiveQuery, run: RunningBlock, stop: int, elapsed_ns: int) -> None:
        rest_ns = run.costs.rest_on_one_ns[SOLO]
        self._fair.used(active.tenant, rest_ns[run.block.start] - rest_ns[stop])
        if stop == run.block.stop:
            self._slow.learn(active, run, elapsed_ns)
            self._corrections[active.tenant.name].learn(run, elapsed_ns)

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:
        if active.next_layer == active.costs.layers and not active.cancelled:
            self._reserve.query_done(active, now_ns)
        self._waiting.discard(active)
        self._preemption.forget(active.query.id)
        self._idle.forget(active.query.id)

    def edge_timed(self, spent_ns: Mapping[str, int], unasked: int) -> None:
        self._fair.served(spent_ns)
        self._contention.arrive_alone(unasked)

    def tenant_removed(self, tenant: str) -> None:
        self._corrections.pop(tenant, None)
        self._waiting.forget(tenant)
        self._reserve.forget(tenant)
        self._fair.forget(tenant)
        self._arrival_check.forget(tenant)
        self._patience.forget(tenant)

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        while self._arrived:
            arrived = self._arrived.pop()
            self._contention.arrives(meets_others=len(state.waiting) + len(state.in_flight) > 1)
            if self._has_no_rival(state) and self._arrival_check.is_in_time(state, arrived, now_ns):
                self._waiting.know_priority(arrived.tenant.priority)
                return self._start(state, arrived, now_ns)  # the rest of the check and the queues would find the same
            if (refused := self._arrival_check.refuse(state, arrived, now_ns)) is not None:
                return refused
        if not (state.waiting or state.wants_cores):
            return self._idle.find_use(state, self._contention, now_ns)
        first, late = None, None
        least: float = inf
        for active in state.between_blocks():
            latest_ns = active.due_ns - remaining_ns(state, active, self._corrections[active.tenant.name])
            if latest_ns < now_ns:
                late = late or active
                if state.free and has_waited_long(active, now_ns):
                    first, least = active, -inf
            elif (laxity := (latest_ns - now_ns) / active.tenant.priority) < least:
                first, least = active, laxity
        can_start = len(state.in_flight) < state.workers
        for priority, latest_ns, head in self._waiting.heads(state, now_ns):
            if latest_ns < now_ns:
                if is_overdue(state, latest_ns, now_ns):
                    return Reject(head, RefusalReason.OVERDUE)
                self._waiting.move_to_late(head)
            elif can_start and (laxity := (latest_ns - now_ns) / priority) < least:
                first, least = head, laxity
        if first is None or least < 0:  # nobody can be in time, or one has been late for long
            first = first or late or (self._waiting.first_late() if can_start else None)
            if first is not None and misses_deadline(state, first, self._corrections, now_ns):
                return Reject(first, RefusalReason.NO_TIME)
        elif not state.free:
            victim = self._preemption.make_room(state, first, now_ns)
            return None if victim is None else Stop(victim)
        if not state.free:
            victim = None if first is not None else self._preemption.make_room_to_grow(state, now_ns)
            return None if victim is None else Stop(victim)
        short = self._preemption.find_short(state, now_ns)
        if short is not None and (first is None or short.due_ns <= first.due_ns):
            grow = self._grow(state, [short], now_ns)
            if grow is not None:
                return grow
        if first is None:
            return self._grow(state, state.wanting_cores(), now_ns)
        return None if self._slow.is_worth_waiting(state, first, now_ns) else self._start(state, first, now_ns)

    def _has_no_rival(self, state: SchedulerState) -> bool:
        """Whether the one query that waits can start, and no other query wants cores."""
        return (
            len(state.waiting) == 1
            and not state.wants_cores
            and self._slow.fast_free(state) > 0
            and len(state.in_flight) < state.workers
        )

    def _start(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Start:
        tenant, batch = active.tenant, None
        correction = self._corrections[tenant.name]
        self._waiting.discard(active)
        batchable = self._waiting.batchable
        if tenant.batching and active.state is QueryState.WAITING and batchable.count_samples(tenant):
            batch = choose_batch(state, active, batchable.queue(tenant), correction, now_ns)
        how = self._contention, self._patience, self._slow.cores, now_ns
        step = size_block(state, active, batch, correction, *how)
        for member in step.members:
            self._waiting.discard(member)
            self._preemption.forget(member.query.id)
        return step

    def _grow(self, state: SchedulerState, wanting: Collection[ActiveQuery], now_ns: int) -> Grow | None:
        """Free cores for the first of these whose block can still use them."""
        free = self._slow.fast_free(state)
        for active in wanting if free else ():
            if missing := active.missing_cores(now_ns):
                return Grow(active, min(missing, free), self._slow.cores)
        return None
