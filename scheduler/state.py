"""What the scheduler knows while queries run, and how that changes. Policies read it; only the state machine writes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from veltair.scheduler.cores import CorePool
from veltair.scheduler.costs import Costs, nearest_level
from veltair.scheduler.interference import SteadyLevel
from veltair.scheduler.running_block import Run, begun
from veltair.types import LayerBlock, Machine, Query, State, Tenant


class Progress(State):
    """An admitted, unfinished query, or the batch that runs in its name."""

    query: Query
    tenant: Tenant
    costs: Costs  # of the profile with the smallest batch that holds the query, and the members
    qos_ns: int  # that is planned for
    due_ns: int  # the end that is planned for: by QoS or the query's own deadline, whichever comes first
    avg_cores: int  # Avg_C: of the whole model against the QoS at first; a policy may renew it
    next_layer: int = 0  # the first layer that has not run, nor runs now
    run: Run | None = None
    cancelled: bool = False
    ready_ns: int = 0  # since when it waits for cores, or waited for those of the block that runs
    members: tuple[Progress, ...] = ()  # run in its name, as one batch with it; none is cancelled
    number: int = 0  # counts through the queries as they start

    @property
    def forsaken(self) -> bool:
        """Nobody waits for it any more."""
        return self.cancelled and not self.members

    def awaited(self) -> Iterator[Progress]:
        """It and its members, but for the cancelled."""
        if not self.cancelled:
            yield self
        yield from self.members

    def block(self, level: int, stop: int, cores: int) -> LayerBlock:
        """The layers from the next one to `stop`, each in its best version for that level and number of cores."""
        costs, start = self.costs, self.next_layer
        versions = costs.versions(level, cores, start, stop)
        return LayerBlock(self.query.id, start, stop, versions, cores, costs.time_ns(level, cores, start, stop))


_batch, _number = attrgetter("profile.batch"), attrgetter("number")


@dataclass(slots=True)
class System:
    """The machine and every active (admitted, unfinished) query."""

    machine: Machine
    grid: Sequence[float]
    pool: CorePool
    steady: SteadyLevel
    workers: int
    cores: int  # of the machine
    tenants: Mapping[str, Tenant]  # by name
    costs: Mapping[str, Sequence[Costs]]  # by model, ascending by batch
    grows_inside_layers: bool = False  # a block takes up more cores at once, else between two of its layers
    waiting: dict[int, Progress] = field(default_factory=dict)  # by query id, in order of arrival
    in_flight: dict[int, Progress] = field(default_factory=dict)  # by query id, in order of start; one worker each
    runs: dict[int, Run] = field(default_factory=dict)  # of those in flight, by query id
    # Those in flight that could use more cores, by query id: they run no block, or one that is `growable`.
    wants: dict[int, Progress] = field(default_factory=dict)
    started: int = 0  # queries, since the start
    led: dict[int, Progress] = field(default_factory=dict)  # members of batches in flight, by id: who leads them
    total_avg: int = 0  # sum of avg_cores over all active queries
    most_in_flight: int = 0  # in flight when the workers last became fewer; more than `workers` until those have ended

    @property
    def free(self) -> int:
        return self.pool.free

    @property
    def demand(self) -> float:
        """Bytes per ns of memory bandwidth that the running blocks need by their profiles."""
        return sum(run.bytes_per_ns for run in self.runs.values())

    def head(self) -> Progress | None:
        """The query that has waited longest, if a worker is free for it."""
        if not self.waiting or len(self.in_flight) >= self.workers:
            return None
        return next(iter(self.waiting.values()))

    def startable(self) -> Iterable[Progress]:
        """The queries that have not started, in order of arrival; none if no worker is free for them."""
        return self.waiting.values() if len(self.in_flight) < self.workers else ()

    def costs_for(self, model: str, samples: int) -> Costs | None:
        """Those of the smallest profiled batch that holds so many; None if none does."""
        by_batch = self.costs[model]
        i = bisect_left(by_batch, samples, key=_batch)
        return by_batch[i] if i < len(by_batch) else None

    def between_blocks(self) -> Iterable[Progress]:
        """The queries in flight that run no block, in order of start."""
        if len(self.runs) == len(self.in_flight):
            return ()
        return [progress for progress in self.wanting() if progress.run is None]

    def wanting(self) -> Iterable[Progress]:
        """The queries in flight that could use more cores, for their next block or for the one that runs, in order of
        start."""
        wants = self.wants
        return sorted(wants.values(), key=_number) if len(wants) > 1 else wants.values()

    def join(self, leader: Progress, members: Sequence[Progress], costs: Costs) -> None:
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

    def admit(self, progress: Progress, now_ns: int) -> None:
        self.waiting[progress.query.id] = progress
        self.total_avg += progress.avg_cores
        progress.ready_ns = now_ns

    def begin(self, progress: Progress, block: LayerBlock, level: int, now_ns: int) -> Run:
        """Starts the block on as many of its cores as are free; a query that waits takes a worker with it."""
        if block.query in self.waiting:
            self.in_flight[block.query] = self.waiting.pop(block.query)
            self.started += 1
            progress.number = self.started
        free = self.pool.free
        core_set = self.pool.take(block.cores if block.cores < free else free)
        progress.run = run = begun(block, level, progress.costs, core_set, now_ns, self.grows_inside_layers)
        progress.next_layer = block.stop
        self.runs[block.query] = run
        if run.growable:
            self.wants[block.query] = progress
        else:
            self.wants.pop(block.query, None)
        return run

    def grow(self, query: int, run: Run, more: int) -> None:
        """Grants a running block that many of the free cores on top."""
        run.grow(self.pool.take(more, beside=run.core_set))
        if not run.growable:
            del self.wants[query]

    def free_cores(self, progress: Progress) -> None:
        """Of its block, if it runs one, which thereby runs no more."""
        if (run := progress.run) is not None:
            self.pool.give_back(run.core_set)
            del self.runs[progress.query.id]
            self.wants[progress.query.id] = progress
            progress.run = None

    def remove(self, progress: Progress) -> None:
        """It is active no more, and neither is who runs in its name."""
        self.free_cores(progress)
        query = progress.query.id
        if query in self.waiting:
            del self.waiting[query]
        else:
            del self.in_flight[query], self.wants[query]
        self.most_in_flight = min(self.most_in_flight, len(self.in_flight))
        self.total_avg -= progress.avg_cores
        for member in progress.members:
            del self.led[member.query.id]
            member.next_layer = progress.next_layer

    def renew_avg(self, progress: Progress, avg_cores: int) -> None:
        self.total_avg += avg_cores - progress.avg_cores
        progress.avg_cores = avg_cores

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
