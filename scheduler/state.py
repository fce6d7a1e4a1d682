"""What the scheduler knows while queries run. Policies read it; only the scheduler writes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.core_pool import CorePool
from veltair.scheduler.costs.level_grid import nearest_level
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.interference import SteadyLevel
from veltair.scheduler.query_states import HOLDING_A_WORKER, RUNNING_A_BLOCK, QueryState, Trigger, next_state
from veltair.scheduler.running_block import BlockGrowth, RunningBlock, begin_block
from veltair.scheduler.steps import Grow, Start
from veltair.types import CoreSet, Machine, Tenant

_number = attrgetter("number")
_WAITING, _READY, _RUNNING = QueryState.WAITING, QueryState.READY, QueryState.RUNNING


@dataclass(slots=True)
class SchedulerState:
    """The machine and every active query. A query's `state` alone says where it stands; the collections follow it.

    A policy reads it like this::

        def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
            head = state.head()
            return Start(head, head.next_block(SOLO, head.costs.layers, 1), SOLO) if head and state.free else None
    """

    machine: Machine
    grid: Sequence[float]
    pool: CorePool
    steady: SteadyLevel
    workers: int
    cores: int  # of the machine
    tenants: Mapping[str, Tenant]  # by name
    costs: Mapping[str, Sequence[ProfileCosts]]  # by model, ascending by batch
    growth: BlockGrowth
    # The collections, each by query id. `_move` alone changes them, except that `grow` updates `wants_cores`.
    waiting: dict[int, ActiveQuery] = field(default_factory=dict)  # WAITING, in order of arrival
    leader_of: dict[int, ActiveQuery] = field(default_factory=dict)  # MEMBER: the query that leads its batch
    in_flight: dict[int, ActiveQuery] = field(default_factory=dict)  # hold a worker, in order of start
    running_blocks: dict[int, RunningBlock] = field(default_factory=dict)  # of those in flight
    wants_cores: dict[int, ActiveQuery] = field(default_factory=dict)  # READY, or RUNNING a block that is `growable`
    started: int = 0  # queries, since the start
    total_avg: int = 0  # sum of avg_cores over all active queries that are no members
    most_in_flight: int = 0  # in flight when the workers last became fewer; more than `workers` until those have ended

    # What policies read

    @property
    def free(self) -> int:
        """How many cores no block holds."""
        return self.pool.free

    @property
    def demand(self) -> float:
        """Bytes per ns of memory bandwidth that the running blocks need by their profiles."""
        return sum(run.bytes_per_ns for run in self.running_blocks.values())

    def head(self) -> ActiveQuery | None:
        """The query that has waited longest, if a worker is free for it."""
        if not self.waiting or len(self.in_flight) >= self.workers:
            return None
        return next(iter(self.waiting.values()))

    def between_blocks(self) -> Collection[ActiveQuery]:
        """The queries in flight that run no block, in order of start."""
        if len(self.running_blocks) == len(self.in_flight):
            return ()
        return [active for active in self.wanting_cores() if active.state is _READY]

    def wanting_cores(self) -> Collection[ActiveQuery]:
        """The queries in flight that could use more cores, for their next block or for the one that runs, in order of
        start."""
        wants = self.wants_cores
        return sorted(wants.values(), key=_number) if len(wants) > 1 else wants.values()

    def total_avg_with(self, active: ActiveQuery, avg_cores: int, members: Sequence[ActiveQuery] = ()) -> int:
        """`total_avg` as it will be when the query starts with this Avg_C and leads these members."""
        total_avg = self.total_avg - active.avg_cores + avg_cores
        return total_avg - sum([member.avg_cores for member in members]) if members else total_avg

    def next_level(self, now_ns: int) -> int:
        """The level (grid index) that a block will meet which starts now.

        What the level exceeds 1.0 by is attributed to the running blocks in proportion to their cores;
        the part of those that soon finish is left out (section 4.3).
        """
        at = self.steady.index
        if at == 0:
            return 0
        running = self.cores - self.pool.free
        leaving = sum([len(run.core_set) for run in self.running_blocks.values() if now_ns >= run.soon_ns])
        if not leaving:
            return at if running else 0
        return nearest_level(self.grid, 1.0 + (self.grid[at] - 1.0) * (running - leaving) / running)

    def tells_slowdown(self, run: RunningBlock, stop: int) -> bool:
        """Whether the time of a block that ran up to layer `stop` says how much it was slowed down. One that was
        stopped does not: of its few layers, waking its cores may take most.
        """
        return stop == run.block.stop and (len(run.stretches) == 1 or self.growth.knows_solo_time(run))

    # What the scheduler writes

    def admit(self, active: ActiveQuery, now_ns: int) -> None:
        """A new query waits from now on."""
        self._move(active, Trigger.ADMIT)
        self.total_avg += active.avg_cores
        active.ready_ns = now_ns

    def start(self, step: Start, now_ns: int) -> RunningBlock:
        """Starts the block on as many of its cores as are free; a query that waits takes a worker, and members."""
        active, block = step.active, step.block
        if step.members:
            self._join(active, step.members)
        if step.costs is not None:
            active.costs = step.costs
        if step.avg_cores is not None:
            self.total_avg += step.avg_cores - active.avg_cores
            active.avg_cores = step.avg_cores
        if active.state is _WAITING:
            self.started += 1
            active.number = self.started
        free = self.pool.free
        core_set = self.pool.take(block.cores if block.cores < free else free, avoid=step.avoid)
        active.run = run = begin_block(block, step.level, active.costs, core_set, now_ns, self.growth)
        active.next_layer = block.stop
        self._move(active, Trigger.START)
        return run

    def grow(self, step: Grow, run: RunningBlock) -> CoreSet:
        """Grants a running block some of the free cores in addition, and returns all that it has, which may be more
        than it wanted at its start."""
        active = step.active
        self._move(active, Trigger.GROW)
        run.grant(self.pool.take(step.more, run.core_set, step.avoid))
        if not run.growable:
            self.wants_cores.pop(active.query.id, None)
        return run.core_set

    def stop(self, active: ActiveQuery) -> None:
        """Mark the block as asked to stop at its next layer."""
        self._move(active, Trigger.STOP)

    def finish_block(self, active: ActiveQuery, run: RunningBlock, stop: int, now_ns: int) -> None:
        """The block ran up to layer `stop`: the query is READY then, or ENDED."""
        active.next_layer = stop
        active.ready_ns = now_ns
        if stop == active.costs.layers:
            trigger = Trigger.LAST_BLOCK_FINISHED
        else:
            trigger = Trigger.BLOCK_FINISHED if stop == run.block.stop else Trigger.BLOCK_STOPPED
        self._move(active, trigger)

    def cancel(self, leader: ActiveQuery, query: int) -> None:
        """The client of a query has left. `leader`: the query itself, or the one that leads its batch, which ends or
        stops once nobody waits for it. Nothing happens the second time.
        """
        if leader.query.id != query:
            [member] = [member for member in leader.members if member.query.id == query]
            leader.members = tuple([other for other in leader.members if other is not member])
            self._move(member, Trigger.BATCH_ENDED)
        elif leader.cancelled:
            return
        else:
            leader.cancelled = True
        if leader.fully_cancelled:
            self._move(leader, Trigger.CANCEL)

    def end(self, active: ActiveQuery, trigger: Trigger) -> None:
        """Ends a query, and its members with it, by BLOCK_FAILED or REJECT."""
        self._move(active, trigger)

    def change_workers(self, workers: int) -> None:
        """Change how many queries may hold a worker; those that hold one keep it."""
        self.workers = workers
        self.most_in_flight = len(self.in_flight)

    def _join(self, leader: ActiveQuery, members: tuple[ActiveQuery, ...]) -> None:
        for member in members:
            self._move(member, Trigger.JOIN)
            self.leader_of[member.query.id] = leader
            self.total_avg -= member.avg_cores
            leader.due_ns = min(leader.due_ns, member.due_ns)
        leader.members += members

    def _move(self, active: ActiveQuery, trigger: Trigger) -> None:
        """Gives the query its next state, and keeps the collections, the cores and the sums in step with it.

        Raises InvariantError, before anything changes, for a transition that is not in the table.
        """
        before = active.state
        after = next_state(before, trigger)
        if after is before:
            return
        active.state = after
        id = active.query.id
        if before is _WAITING:
            del self.waiting[id]
        if after is _RUNNING:
            self.in_flight[id] = active
            self._run(id, active)
        elif after is _READY:
            self._release_cores(id, active)
            self.wants_cores[id] = active
        elif after is _WAITING:
            self.waiting[id] = active
        elif after in RUNNING_A_BLOCK:  # it stops
            self.wants_cores.pop(id, None)
        elif after is QueryState.ENDED:
            self._end(id, active, before)

    def _run(self, id: int, active: ActiveQuery) -> None:
        run = active.run
        assert run is not None
        self.running_blocks[id] = run
        if run.growable:
            self.wants_cores[id] = active
        else:
            self.wants_cores.pop(id, None)

    def _release_cores(self, id: int, active: ActiveQuery) -> None:
        run = self.running_blocks.pop(id)
        self.pool.give_back(run.core_set)
        active.run = None

    def _end(self, id: int, active: ActiveQuery, before: QueryState) -> None:
        if before is QueryState.MEMBER:
            del self.leader_of[id]
            return
        if before in RUNNING_A_BLOCK:
            self._release_cores(id, active)
        if before in HOLDING_A_WORKER:
            del self.in_flight[id]
            self.wants_cores.pop(id, None)
        self.most_in_flight = min(self.most_in_flight, len(self.in_flight))
        self.total_avg -= active.avg_cores
        for member in active.members:
            member.next_layer = active.next_layer
            self._move(member, Trigger.BATCH_ENDED)
