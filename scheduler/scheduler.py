"""The scheduler: events in, decisions out. It reads no clock; time comes with the events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from veltair.errors import ConfigError, InvariantError
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.admission import Admission
from veltair.scheduler.core_pool import CorePool
from veltair.scheduler.costs.level_grid import nearest_level
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.event_validation import find_contradiction
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CancelQuery,
    CountersSampled,
    Decision,
    EdgeTimed,
    Event,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    QueryCancelled,
    QueryRuns,
    RejectQuery,
    StartBlock,
    StopBlock,
    TenantAdded,
    TenantRemoved,
    WorkersChanged,
)
from veltair.scheduler.interference import BlockTimed, DemandChanged, InterferenceProxy, ObservedSlowdown, SteadyLevel
from veltair.scheduler.invariants import find_violations
from veltair.scheduler.policies.by_name import make_policy
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.query_states import QueryState, Trigger, may_take
from veltair.scheduler.running_block import BlockGrowth
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.stats import SchedulerStats, Totals, collect_stats
from veltair.scheduler.steps import Grow, Reject, Start, Stop
from veltair.types import Machine, ModelProfile, Tenant

_REMEMBERED_EVENTS = 16
_ENDED, _WAITING, _CANCELLING = QueryState.ENDED, QueryState.WAITING, QueryState.CANCELLING


class Scheduler:
    """Serves every tenant's queries on one machine under one policy.

    A query runs block by block and holds a worker from its first block to its end. Every query that arrives ends
    exactly once: by FinishQuery or RejectQuery, by BlockFailed, or by being cancelled. No decision follows the
    last two, since the sender of the event knows already. `query_states` has the table of all transitions.

    A batch runs in the name of one of its queries, the leader, and holds one worker: events and decisions of its
    blocks name the leader; it ends with one FinishQuery or RejectQuery for each query that was not cancelled, in the
    order in which they joined.

    ::

        scheduler = Scheduler(Machine(((0, 1),)), [tenant], {"resnet50": [profile]}, "veltair", workers=2)
        [start] = scheduler.handle(QueryArrived(0, Query(1, tenant.name, arrival_ns=0)))
        scheduler.handle(BlockFinished(start.block.predicted_ns, 1, start.block.stop, start.block.predicted_ns))
    """

    def __init__(
        self,
        machine: Machine,
        tenants: Iterable[Tenant],
        profiles: Mapping[str, Sequence[ModelProfile]] | ProfileCatalogue,
        policy: str | Policy,
        workers: int,
        *,
        proxy: InterferenceProxy | None = None,
        planned_share: float = 1.0,
        growth: BlockGrowth | None = None,
    ) -> None:
        """`profiles`: by model name, ascending by batch, or a catalogue that was made of them for the same number of
        cores. `proxy`: where the interference level comes from, by default the observed slowdown.
        `planned_share`: the share of each target and deadline that policies plan with; the rest is left for what no
        profile foresees. `growth`: how blocks take up cores while they run, by default between two layers.

        Raises ConfigError, or ProfileError for what is wrong in a profile.
        """
        cores = machine.cores
        if not cores or len(set(cores)) != len(cores):
            raise ConfigError(f"machine: expected at least one core and none twice, got {machine.domains}")
        if workers < 0:
            raise ConfigError(f"workers: expected 0 or more, got {workers}")
        catalogue = profiles if isinstance(profiles, ProfileCatalogue) else ProfileCatalogue(profiles, len(cores))
        if catalogue.cores != len(cores):
            raise ConfigError(f"catalogue: expected one for {len(cores)} cores, got one for {catalogue.cores}")
        self._catalogue = catalogue
        self.admission = Admission(tenants, catalogue, planned_share)
        self._policy = make_policy(policy) if isinstance(policy, str) else policy
        self._proxy: InterferenceProxy = ObservedSlowdown() if proxy is None else proxy
        self.state = SchedulerState(
            machine=machine,
            grid=catalogue.grid,
            pool=CorePool(machine),
            steady=SteadyLevel(catalogue.grid),
            workers=workers,
            cores=len(cores),
            tenants=self.admission.tenants,
            costs=catalogue.costs,
            growth=BlockGrowth() if growth is None else growth,
        )
        self._now_ns = 0
        self._last_events: deque[Event] = deque(maxlen=_REMEMBERED_EVENTS)
        self._totals = Totals()

    def handle(self, event: Event) -> list[Decision]:
        """Takes one event and returns what to do, in this order.

        Time never runs backwards: an event stamped before its predecessor counts as simultaneous with it. One that
        cannot be (an unknown query, a block that does not run, …) raises InvariantError and changes nothing.

        A cancelled query that waits, for its first block or between two, is dropped without a decision, and so is one
        of a batch that others wait for. One that runs alone gets CancelQuery, and ends with the BlockFinished or
        BlockFailed that follows. After a StopBlock and a BlockFinished before the block's stop, it goes on from there.
        """
        contradiction = find_contradiction(self.state, event)
        if contradiction is not None:
            self._raise(contradiction, event)
        self._last_events.append(event)
        if event.time_ns > self._now_ns:
            self._now_ns = event.time_ns
        decisions: list[Decision] = []
        match event:
            case BlockFinished():
                self._finish_block(event, decisions)
            case QueryArrived() | QueryRuns():
                self._admit(event, decisions)
            case BlockGrown(query=query, layer=layer, core_set=core_set):
                self.state.running_blocks[query].take_up(layer, len(core_set), self._now_ns)
                self._totals.blocks_grown += 1
            case QueryCancelled():
                self._cancel(event, decisions)
            case BlockFailed():
                self._end(self.state.in_flight[event.query], Trigger.BLOCK_FAILED)
            case CountersSampled():
                self._proxy.observe(event.sample)
            case EdgeTimed():
                self._policy.edge_timed(event.spent_ns, event.unasked)
            case WorkersChanged():
                self.state.change_workers(event.workers)
            case TenantAdded():
                self.admission.add(event.tenant)
            case TenantRemoved():
                self.admission.remove(event.tenant)
                self._policy.tenant_removed(event.tenant)
        self._give_out_cores(decisions)
        return decisions

    def prepare_model(self, model: str, profiles: Sequence[ModelProfile]) -> Iterator[ProfileCosts]:
        """The tables of a model that will be learned, one at a time: each takes a while to make. `profiles`: ascending
        by batch. Raises ConfigError, or ProfileError for what is wrong in a profile."""
        tables = self._catalogue.prepare(model, profiles)
        if self.state.grid is not self._catalogue.grid:
            self.state.grid, self.state.steady = self._catalogue.grid, SteadyLevel(self._catalogue.grid)
        return tables

    def learn_model(self, model: str, tables: Iterable[ProfileCosts]) -> None:
        """What another model costs, as `prepare_model` gives it; it is forgotten with its last tenant. Raises
        ConfigError where the name is taken."""
        self._catalogue.learn(model, list(tables))

    @property
    def level(self) -> float:
        """The machine's interference level now; 1.0: blocks run as if alone."""
        return self._proxy.level

    @property
    def level_source(self) -> str:
        """The name of the source that the level comes from."""
        return self._proxy.name

    def stats(self) -> SchedulerStats:
        """The present state in numbers, and totals since the start."""
        return collect_stats(self.state, self._proxy, self._totals)

    def check_invariants(self) -> None:
        """Raises InvariantError if the state contradicts itself. For tests and a debug switch: O(queries + cores)."""
        if violations := list(find_violations(self.state)):
            self._raise("; ".join(violations))

    # Events

    def _admit(self, event: QueryArrived | QueryRuns, decisions: list[Decision]) -> None:
        admitted = self.admission.admit(event.query)
        if isinstance(admitted, RejectQuery):
            decisions.append(admitted)
        else:
            self.state.admit(admitted, self._now_ns)
            if isinstance(event, QueryRuns):
                decisions.append(self._start(Start(admitted, event.block, nearest_level(self.state.grid, event.level))))
            else:
                self._policy.query_arrived(admitted, self._now_ns)

    def _finish_block(self, event: BlockFinished, decisions: list[Decision]) -> None:
        state = self.state
        active, run = state.in_flight[event.query], state.running_blocks[event.query]
        if self._proxy.observes is BlockTimed and state.tells_slowdown(run, event.stop):
            self._proxy.observe(BlockTimed(event.elapsed_ns, run.solo_ns(event.stop)))
        state.finish_block(active, run, event.stop, self._now_ns)
        self._policy.block_ended(active, run, event.stop, event.elapsed_ns)
        if active.state is _ENDED:
            self._tell_ended(active)
            decisions += [FinishQuery(each.query.id) for each in active.live_queries]

    def _cancel(self, event: QueryCancelled, decisions: list[Decision]) -> None:
        state = self.state
        leader = state.leader_of.get(event.query) or state.waiting.get(event.query) or state.in_flight[event.query]
        before = leader.state
        state.cancel(leader, event.query)
        if leader.state is before:
            return  # the batch continues for its other queries, or was stopped before
        if leader.state is _CANCELLING:
            decisions.append(CancelQuery(leader.query.id))
        else:
            self._tell_ended(leader)

    # Decisions

    def _give_out_cores(self, decisions: list[Decision]) -> None:
        state, now_ns = self.state, self._now_ns
        if self._proxy.observes is DemandChanged:
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
            self._raise(f"the policy wants {block} with no core free")
        if active.run is not None or block.start != active.next_layer:
            self._raise(f"the policy wants {block}, but the query stands at layer {active.next_layer}")
        if active.state is _WAITING and len(state.in_flight) >= state.workers:
            self._raise(f"the policy wants {block} with no worker free")
        if step.members and (
            active.state is not _WAITING or any(member.state is not _WAITING for member in step.members)
        ):
            self._raise(f"the policy wants {block} for a batch of queries that do not all wait")
        members = tuple([member.query.id for member in step.members]) if step.members else ()
        core_set = state.start(step, self._now_ns).core_set
        conflict = len(core_set) < block.cores
        totals = self._totals
        totals.blocks_started += 1
        totals.conflicts += conflict
        totals.capped_blocks += step.capped
        return StartBlock(block, core_set, conflict, state.grid[step.level], members)

    def _grow(self, step: Grow) -> GrowBlock:
        query, run = step.active.query.id, step.active.run
        if run is None or not may_take(step.active.state, Trigger.GROW) or not 0 < step.more <= self.state.free:
            self._raise(f"the policy wants {step.more} more cores for query {query}")
        return GrowBlock(query, self.state.grow(step, run))

    def _stop(self, step: Stop) -> StopBlock:
        active = step.active
        if not may_take(active.state, Trigger.STOP):
            self._raise(f"the policy wants to stop query {active.query.id}, which runs no block or is stopping already")
        self.state.stop(active)
        return StopBlock(active.query.id)

    def _reject(self, step: Reject) -> list[RejectQuery]:
        active = step.active
        if not may_take(active.state, Trigger.REJECT):
            self._raise(f"the policy wants to give up query {active.query.id}, which runs a block or has ended")
        self._end(active, Trigger.REJECT)
        return [RejectQuery(each.query.id, step.reason, step.for_ns) for each in active.live_queries]

    def _end(self, active: ActiveQuery, trigger: Trigger) -> None:
        """Ends a query, and all that run in its name."""
        self.state.end(active, trigger)
        self._tell_ended(active)

    def _tell_ended(self, active: ActiveQuery) -> None:
        for each in (active, *active.members):
            self._policy.query_ended(each, self._now_ns)

    def _raise(self, what: str, *events: Event) -> NoReturn:
        """`events`: not committed, but to be named with the last ones."""
        last = [*self._last_events, *events][-_REMEMBERED_EVENTS:]
        raise InvariantError("\n  ".join([f"{what}; the last events:", *map(repr, last)]))
