"""What the scheduler knows while queries run, and how that changes. Policies read it; only the state machine writes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.core_pool import CorePool
from veltair.scheduler.costs.level_grid import nearest_level
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.interference import SteadyLevel
from veltair.scheduler.running_block import RunningBlock, begin_block
from veltair.types import LayerBlock, Machine, Tenant

_batch, _number = attrgetter("profile.batch"), attrgetter("number")


@dataclass(slots=True)
class SchedulerState:
    """The machine and every active (admitted, unfinished) query."""

    machine: Machine
    grid: Sequence[float]
    pool: CorePool
    steady: SteadyLevel
    workers: int
    cores: int  # of the machine
    tenants: Mapping[str, Tenant]  # by name
    costs: Mapping[str, Sequence[ProfileCosts]]  # by model, ascending by batch
    grows_inside_layers: bool = False  # a block takes up more cores at once, else between two of its layers
    waiting: dict[int, ActiveQuery] = field(default_factory=dict)  # by query id, in order of arrival
    in_flight: dict[int, ActiveQuery] = field(default_factory=dict)  # by query id, in order of start; one worker each
    runs: dict[int, RunningBlock] = field(default_factory=dict)  # of those in flight, by query id
    # Those in flight that could use more cores, by query id: they run no block, or one that is `growable`.
    wants: dict[int, ActiveQuery] = field(default_factory=dict)
    started: int = 0  # queries, since the start
    led: dict[int, ActiveQuery] = field(default_factory=dict)  # members of batches in flight, by id: who leads them
    total_avg: int = 0  # sum of avg_cores over all active queries
    most_in_flight: int = 0  # in flight when the workers last became fewer; more than `workers` until those have ended

    @property
    def free(self) -> int:
        return self.pool.free

    @property
    def demand(self) -> float:
        """Bytes per ns of memory bandwidth that the running blocks need by their profiles."""
        return sum(run.bytes_per_ns for run in self.runs.values())

    def head(self) -> ActiveQuery | None:
        """The query that has waited longest, if a worker is free for it."""
        if not self.waiting or len(self.in_flight) >= self.workers:
            return None
        return next(iter(self.waiting.values()))

    def startable(self) -> Iterable[ActiveQuery]:
        """The queries that have not started, in order of arrival; none if no worker is free for them."""
        return self.waiting.values() if len(self.in_flight) < self.workers else ()

    def costs_for(self, model: str, samples: int) -> ProfileCosts | None:
        """Those of the smallest profiled batch that holds so many; None if none does."""
        by_batch = self.costs[model]
        i = bisect_left(by_batch, samples, key=_batch)
        return by_batch[i] if i < len(by_batch) else None

    def between_blocks(self) -> Iterable[ActiveQuery]:
        """The queries in flight that run no block, in order of start."""
        if len(self.runs) == len(self.in_flight):
            return ()
        return [active for active in self.wanting() if active.run is None]

    def wanting(self) -> Iterable[ActiveQuery]:
        """The queries in flight that could use more cores, for their next block or for the one that runs, in order of
        start."""
        wants = self.wants
        return sorted(wants.values(), key=_number) if len(wants) > 1 else wants.values()

    def join(self, leader: ActiveQuery, members: Sequence[ActiveQuery], costs: ProfileCosts) -> None:
        """Makes waiting queries of a tenant one batch in the name of one that waits, too, and must be started next.

        `costs`: of a profile that holds all their samples.
        """
        for member in members:
            id = member.query.id
            del self.waiting[id]
            self.led[id] = leader
            self.total_avg -= member.avg_cores
            leader.due_ns = min(leader.due_ns, member.due_ns)
        leader.members += tuple(members)
        leader.costs = costs

    def admit(self, active: ActiveQuery, now_ns: int) -> None:
        self.waiting[active.query.id] = active
        self.total_avg += active.avg_cores
        active.ready_ns = now_ns

    def begin(self, active: ActiveQuery, block: LayerBlock, level: int, now_ns: int) -> RunningBlock:
        """Starts the block on as many of its cores as are free; a query that waits takes a worker with it."""
        if block.query in self.waiting:
            self.in_flight[block.query] = self.waiting.pop(block.query)
            self.started += 1
            active.number = self.started
        free = self.pool.free
        core_set = self.pool.take(block.cores if block.cores < free else free)
        active.run = run = begin_block(block, level, active.costs, core_set, now_ns, self.grows_inside_layers)
        active.next_layer = block.stop
        self.runs[block.query] = run
        if run.growable:
            self.wants[block.query] = active
        else:
            self.wants.pop(block.query, None)
        return run

    def grow(self, query: int, run: RunningBlock, more: int) -> None:
        """Grants a running block that many of the free cores on top."""
        run.grow(self.pool.take(more, beside=run.core_set))
        if not run.growable:
            del self.wants[query]

    def free_cores(self, active: ActiveQuery) -> None:
        """Of its block, if it runs one, which thereby runs no more."""
        if (run := active.run) is not None:
            self.pool.give_back(run.core_set)
            del self.runs[active.query.id]
            self.wants[active.query.id] = active
            active.run = None

    def remove(self, active: ActiveQuery) -> None:
        """It is active no more, and neither is who runs in its name."""
        self.free_cores(active)
        query = active.query.id
        if query in self.waiting:
            del self.waiting[query]
        else:
            del self.in_flight[query], self.wants[query]
        self.most_in_flight = min(self.most_in_flight, len(self.in_flight))
        self.total_avg -= active.avg_cores
        for member in active.members:
            del self.led[member.query.id]
            member.next_layer = active.next_layer

    def renew_avg(self, active: ActiveQuery, avg_cores: int) -> None:
        self.total_avg += avg_cores - active.avg_cores
        active.avg_cores = avg_cores

    def next_level(self, now_ns: int) -> int:
        """The level (grid index) that a block will meet which starts now.

        What the level exceeds 1.0 by is laid to the running blocks in proportion to their cores;
        the part of those that soon finish is left out (section 4.3).
        """
        at = self.steady.index
        if at == 0:
            return 0
        running = self.cores - self.pool.free
        leaving = sum([len(run.core_set) for run in self.runs.values() if now_ns >= run.soon_ns])
        if not leaving:
            return at if running else 0
        return nearest_level(self.grid, 1.0 + (self.grid[at] - 1.0) * (running - leaving) / running)
