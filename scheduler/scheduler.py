"""The state machine: events in, decisions out. It reads no clock; time comes with the events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from veltair.errors import ConfigError, InvariantError
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.admission import Admission
from veltair.scheduler.core_pool import CorePool
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CancelQuery,
    CountersSampled,
    Decision,
    Event,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    QueryCancelled,
    RejectQuery,
    StartBlock,
    StopBlock,
    WorkersChanged,
)
from veltair.scheduler.interference import BlockTimed, DemandChanged, ObservedSlowdown, Proxy, SteadyLevel
from veltair.scheduler.invariants import violations
from veltair.scheduler.policies.by_name import make_policy
from veltair.scheduler.policies.policy import Grow, Policy, Reject, Start, Stop
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.stats import Stats, Totals
from veltair.types import Machine, ModelProfile, Query, Tenant

_REMEMBERED_EVENTS = 16


class Scheduler:
    """Serves every tenant's queries on one machine under one policy.

    A query runs block by block and holds a worker from its first block to its end. Every query that arrives ends
    exactly once: by FinishQuery or RejectQuery, by BlockFailed, or by being cancelled. No decision follows the
    last two, since whoever sent the event knows already.

    A batch runs in the name of one of its queries, the leader, and holds one worker: events and decisions of its
    blocks name the leader, its end is one FinishQuery or RejectQuery for each query that was not cancelled, in the
    order in which they joined.
    """

    def __init__(
        self,
        machine: Machine,
        tenants: Iterable[Tenant],
        profiles: Mapping[str, Sequence[ModelProfile]] | ProfileCatalogue,
        policy: str | Policy,
        workers: int,
        *,
        proxy: Proxy | None = None,
        planned_share: float = 1.0,
        grows_inside_layers: bool = False,
    ) -> None:
        """`profiles`: by model name, ascending by batch, or a catalogue that was made of them for as many cores.
        `proxy`: where the interference level comes from, by default the observed slowdown. `planned_share`: of each
        QoS target and deadline, what policies plan with; the rest is left for what no profile foresees.
        `grows_inside_layers`: whoever carries out the decisions gives a block more cores at once, and not between two
        of its layers. Raises ConfigError, or ProfileError for what is wrong in a profile.
        """
        cores = machine.cores
        if not cores or len(set(cores)) != len(cores):
            raise ConfigError(f"machine: expected at least one core and none twice, got {machine.domains}")
        if workers < 0:
            raise ConfigError(f"workers: expected 0 or more, got {workers}")
        known = profiles if isinstance(profiles, ProfileCatalogue) else ProfileCatalogue(profiles, len(cores))
        if known.cores != len(cores):
            raise ConfigError(f"catalogue: expected one for {len(cores)} cores, got one for {known.cores}")
        self._admission = Admission(tenants, known, planned_share)
        self._policy = make_policy(policy) if isinstance(policy, str) else policy
        self._proxy: Proxy = ObservedSlowdown() if proxy is None else proxy
        self.state = SchedulerState(
            machine, known.grid, CorePool(machine), SteadyLevel(known.grid), workers, len(cores),
            self._admission.tenants, known.costs, grows_inside_layers,
        )  # fmt: skip
        self._now_ns = 0
        self._last_events: deque[Event] = deque(maxlen=_REMEMBERED_EVENTS)
        self._totals = Totals()

    def handle(self, event: Event) -> list[Decision]:
        """Takes one event and says what to do, in this order.

        Time never runs backwards: an event stamped before its predecessor counts as simultaneous with it. An event
        that cannot be (an unknown query, a block that does not run, …) raises InvariantError and changes nothing.

        A cancelled query that waits, for its first block or between two, is dropped without a decision, and so is
        one of a batch that others wait for; one that runs alone gets CancelQuery, and ends with the BlockFinished or
        BlockFailed that follows. After a BlockFinished short of the block's stop, as one that got StopBlock sends,
        the query goes on from there.
        """
        self._last_events.append(event)
        if event.time_ns > self._now_ns:
            self._now_ns = event.time_ns
        decisions: list[Decision] = []
        match event:
            case BlockFinished():
                self._finished(event, decisions)
            case QueryArrived():
                self._arrived(event.query, decisions)
            case BlockGrown():
                self._grown(event)
            case QueryCancelled():
                self._cancelled(event.query, decisions)
            case BlockFailed():
                self._end(self._in_flight(event.query))
            case CountersSampled():
                self._proxy.observe(event.sample)
            case WorkersChanged():
                self._workers_changed(event.workers)
        self._give_out_cores(decisions)
        return decisions

    @property
    def level(self) -> float:
        """The machine's interference level now; 1.0: blocks run as if alone."""
        return self._proxy.level

    @property
    def level_source(self) -> str:
        return self._proxy.name

    def stats(self) -> Stats:
        return Stats.of(self.state, self._proxy, self._totals)

    def check_invariants(self) -> None:
        """Raises InvariantError if the state contradicts itself. For tests and a debug switch: O(queries + cores)."""
        if broken := list(violations(self.state)):
            self._broken("; ".join(broken))

    # Events

    def _arrived(self, query: Query, decisions: list[Decision]) -> None:
        state = self.state
        if query.id in state.waiting or query.id in state.in_flight or query.id in state.led:
            self._broken(f"query {query.id} arrived twice")
        if query.tenant not in self._admission.tenants:
            self._broken(f"query {query.id} is of an unknown tenant, {query.tenant!r}")
        admitted = self._admission.admit(query)
        if isinstance(admitted, RejectQuery):
            decisions.append(admitted)
        else:
            state.admit(admitted, self._now_ns)
            self._policy.query_arrived(admitted, self._now_ns)

    def _finished(self, event: BlockFinished, decisions: list[Decision]) -> None:
        state, active = self.state, self._running(event.query)
        run = state.runs[event.query]
        block = run.block
        if not block.start <= event.stop <= block.stop or event.elapsed_ns < 0:
            self._broken(f"query {event.query} cannot have finished so: it runs {block}")
        # what a block takes alone is not known that grew inside a layer
        if self._proxy.sees is BlockTimed and (len(run.stretches) == 1 or not state.grows_inside_layers):
            self._proxy.observe(BlockTimed(event.elapsed_ns, run.solo_ns(event.stop)))
        state.free_cores(active)
        active.next_layer = event.stop
        active.ready_ns = self._now_ns
        self._policy.block_ended(active, run, event.stop, event.elapsed_ns)
        if event.stop == active.costs.layers or active.fully_cancelled:
            self._end(active)
            decisions += [FinishQuery(each.query.id) for each in active.awaited()]

    def _grown(self, event: BlockGrown) -> None:
        self._running(event.query)
        run = self.state.runs[event.query]
        since, before = run.stretches[-1]
        if not set(event.core_set) <= set(run.core_set) or len(event.core_set) < before:
            self._broken(f"query {event.query} ran on {before} cores and may use {run.core_set}")
        if not since <= event.layer <= run.block.stop:
            self._broken(f"query {event.query} runs {run.block}, its cores last changed at layer {since}")
        run.take_up(event.layer, len(event.core_set), self._now_ns)
        self._totals.blocks_grown += 1

    def _cancelled(self, query: int, decisions: list[Decision]) -> None:
        state = self.state
        if (leader := state.led.pop(query, None)) is not None:
            leader.members = tuple([member for member in leader.members if member.query.id != query])
        else:
            leader = state.waiting.get(query) or self._in_flight(query)
            if leader.cancelled:
                return
            leader.cancelled = True
        if not leader.fully_cancelled:
            return  # the batch goes on for the others
        if leader.run is None:
            self._end(leader)
        else:
            leader.run.stopping = True
            decisions.append(CancelQuery(leader.query.id))

    def _workers_changed(self, workers: int) -> None:
        if workers < 0:
            self._broken(f"{workers} workers")
        self.state.workers = workers
        self.state.most_in_flight = len(self.state.in_flight)

    # Decisions

    def _give_out_cores(self, decisions: list[Decision]) -> None:
        state, now_ns = self.state, self._now_ns
        if self._proxy.sees is DemandChanged:
            self._proxy.observe(DemandChanged(state.demand))
        state.steady.follow(self._proxy.level)
        next_step = self._policy.next_step
        while (step := next_step(state, now_ns)) is not None:
            match step:
                case Start():
                    decisions.append(self._start(step))
                case Grow():
                    decisions.append(self._grow(step))
                case Stop():
                    decisions.append(self._stop(step))
                case Reject():
                    decisions += self._reject(step)

    def _start(self, step: Start) -> StartBlock:
        state, active, block = self.state, step.active, step.block
        if not state.pool.free:
            self._broken(f"the policy wants {block} with no core free")
        if active.run is not None or block.start != active.next_layer:
            self._broken(f"the policy wants {block}, but the query stands at layer {active.next_layer}")
        members: tuple[int, ...] = ()
        if block.query in state.waiting:
            if len(state.in_flight) >= state.workers:
                self._broken(f"the policy wants {block} with no worker free")
            members = tuple([member.query.id for member in active.members])
        core_set = state.begin(active, block, step.level, self._now_ns).core_set
        conflict = len(core_set) < block.cores
        totals = self._totals
        totals.blocks_started += 1
        if conflict:
            totals.conflicts += 1
        if step.capped:
            totals.capped_blocks += 1
        return StartBlock(block, core_set, conflict, state.grid[step.level], members)

    def _grow(self, step: Grow) -> GrowBlock:
        query, run = step.active.query.id, step.active.run
        if run is None or not 0 < step.more <= self.state.free:
            self._broken(f"the policy wants {step.more} more cores for query {query}")
        self.state.grow(query, run, step.more)
        return GrowBlock(query, run.core_set)

    def _stop(self, step: Stop) -> StopBlock:
        query, run = step.active.query.id, step.active.run
        if run is None or run.stopping:
            self._broken(f"the policy wants to stop query {query}, which runs no block or is stopping already")
        run.stopping = True
        return StopBlock(query)

    def _reject(self, step: Reject) -> list[RejectQuery]:
        active = step.active
        if active.run is not None:
            self._broken(f"the policy wants to give up query {active.query.id}, which runs a block")
        self._end(active)
        return [RejectQuery(each.query.id, step.reason) for each in active.awaited()]

    # State

    def _in_flight(self, query: int) -> ActiveQuery:
        active = self.state.in_flight.get(query)
        if active is None:
            self._broken(f"query {query} is not in flight")
        return active

    def _running(self, query: int) -> ActiveQuery:
        active = self.state.in_flight.get(query)
        if active is None or active.run is None:
            self._in_flight(query)
            self._broken(f"query {query} runs no block")
        return active

    def _end(self, active: ActiveQuery) -> None:
        """Of a query, and of all that run in its name."""
        self.state.remove(active)
        for each in (active, *active.members):
            self._policy.query_ended(each, self._now_ns)

    def _broken(self, what: str) -> NoReturn:
        events = "\n  ".join(map(repr, self._last_events))
        raise InvariantError(f"{what}; the last events:\n  {events}")
