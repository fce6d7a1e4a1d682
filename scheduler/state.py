"""What the scheduler knows while queries run. Policies read it; only the state machine writes to it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from veltair.scheduler.cores import CorePool
from veltair.scheduler.costs import SOLO, Costs, nearest_level
from veltair.scheduler.proxy import SteadyLevel
from veltair.types import CoreSet, LayerBlock, Machine, Query, Tenant


@dataclass(slots=True)
class Run:
    """A block that runs now."""

    block: LayerBlock
    costs: Costs
    core_set: CoreSet  # granted; what the worker has taken up is the last stretch's
    stretches: list[tuple[int, int]]  # (first layer, cores), ascending: how the core count changed
    predicted_ns: int  # on the cores that it really has, at the level of its start
    ends_ns: int  # expected
    bytes_per_ns: float
    growable: bool  # has fewer cores than it wanted, and a moment to take up more
    stopping: bool = False  # told to stop at its next layer, or cancelled

    @classmethod
    def begin(
        cls, block: LayerBlock, costs: Costs, core_set: CoreSet, now_ns: int, grows_inside_layers: bool = False
    ) -> Run:
        cores = len(core_set)
        predicted_ns = block.predicted_ns
        if cores < block.cores:
            predicted_ns = _rescaled(block, costs, block.start, cores)
        bytes_per_ns = (costs.bytes[block.stop] - costs.bytes[block.start]) / max(predicted_ns, 1)
        stretches = [(block.start, cores)]
        growable = cores < block.cores and (grows_inside_layers or block.stop - block.start > 1)
        return cls(block, costs, core_set, stretches, predicted_ns, now_ns + predicted_ns, bytes_per_ns, growable)

    def grow(self, more: CoreSet) -> None:
        """Grants more cores, which the worker is yet to take up."""
        self.core_set = tuple(sorted(self.core_set + more))
        self.growable = len(self.core_set) < self.block.cores

    def take_up(self, layer: int, cores: int, now_ns: int) -> None:
        """The block goes on with `layer` on that many cores; the prediction of what remains follows."""
        ends_ns = now_ns + _rescaled(self.block, self.costs, layer, cores)
        self.predicted_ns += ends_ns - self.ends_ns
        self.ends_ns = ends_ns
        self.stretches.append((layer, cores))

    def solo_ns(self, stop: int) -> int:
        """What the layers up to `stop` take alone on the machine, each on the cores that it really had."""
        if len(self.stretches) == 1:
            return self.costs.solo_ns(
                self.block.versions, self.block.start, self.block.start, stop, self.stretches[0][1]
            )
        ends = [layer for layer, _ in self.stretches[1:]] + [stop]
        return sum(
            self.costs.solo_ns(self.block.versions, self.block.start, start, min(end, stop), cores)
            for (start, cores), end in zip(self.stretches, ends, strict=True)
        )

    def soon_to_finish(self, now_ns: int) -> bool:
        """Section 4.3: what remains is within 10 % of what the block was predicted to take."""
        return (self.ends_ns - now_ns) * 10 <= self.predicted_ns

    def layer_at(self, now_ns: int) -> int:
        """The layer that should be in execution now, if all goes as predicted; always one of the block's."""
        block, (layer, cores) = self.block, self.stretches[-1]
        if now_ns >= self.ends_ns:
            return block.stop - 1
        done_ns = self.costs.time_ns(SOLO, cores, layer, block.stop)  # scaled by the share of time that is over
        left_ns = self.predicted_ns if len(self.stretches) == 1 else _rescaled(block, self.costs, layer, cores)
        done_ns -= done_ns * (self.ends_ns - now_ns) // max(left_ns, 1)
        return min(max(layer, self.costs.layer_after(SOLO, cores, layer, done_ns)), block.stop - 1)

    def missing_cores(self, now_ns: int) -> int:
        """How many more cores the block could still use."""
        if not self.growable or self.stopping or self.soon_to_finish(now_ns):
            return 0
        return self.block.cores - len(self.core_set)


def _rescaled(block: LayerBlock, costs: Costs, start: int, cores: int) -> int:
    """The prediction for layers [start, block.stop) on other cores.

    The code versions stay those picked for `block.cores`; their solo times give the ratio.
    """
    here = costs.solo_ns(block.versions, block.start, start, block.stop, cores)
    return block.predicted_ns * here // costs.solo_ns(block.versions, block.start, block.start, block.stop, block.cores)


@dataclass(slots=True)
class Progress:
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
    members: list[Progress] = field(default_factory=list)  # run in its name, as one batch with it; none is cancelled

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


_batch = attrgetter("profile.batch")


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
    led: dict[int, Progress] = field(default_factory=dict)  # members of batches in flight, by id: who leads them
    total_avg: int = 0  # sum of avg_cores over all active queries
    most_in_flight: int = 0  # in flight when the workers last became fewer; more than `workers` until those have ended

    @property
    def free(self) -> int:
        return self.pool.free

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
        leader.members += members
        leader.costs = costs

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
        running, staying = self.cores - self.free, 0
        for progress in self.in_flight.values():
            run = progress.run
            if run is not None and (run.ends_ns - now_ns) * 10 > run.predicted_ns:  # not run.soon_to_finish(now_ns)
                staying += len(run.core_set)
        if staying == running:
            return at if running else 0
        return nearest_level(self.grid, 1.0 + (self.grid[at] - 1.0) * staying / running)
