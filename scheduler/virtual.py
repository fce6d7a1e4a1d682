"""A machine in virtual time: carries out a scheduler's decisions by the profiles, layer by layer.

It drives the same Scheduler as the daemon does, faithfully to what a worker does: core sets and cancellations are
looked at between two layers. Everything that varies is an argument, so a run is repeatable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from veltair.errors import InvariantError
from veltair.scheduler.scheduler import Scheduler
from veltair.types import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CancelQuery,
    CoreSet,
    Decision,
    Event,
    FinishQuery,
    GrowBlock,
    LayerBlock,
    QueryCancelled,
    RejectQuery,
    StartBlock,
    StopBlock,
)

# How long a layer takes: (query, layer, version, cores) -> ns.
LayerTime = Callable[[int, int, int, int], int]


def solo_times(scheduler: Scheduler) -> LayerTime:
    """Every layer takes exactly what its profile says for a machine of its own."""

    def layer_ns(query: int, layer: int, version: int, cores: int) -> int:
        profile = scheduler.system.in_flight[query].costs.profile
        return profile.versions[layer][version].latency.latency_ns[0][cores - 1]

    return layer_ns


@dataclass(slots=True)
class _Running:
    block: LayerBlock
    granted: CoreSet
    core_set: CoreSet  # in use
    began_ns: int
    layer: int
    cancelled: bool = False
    stop_early: bool = False


@dataclass(slots=True)
class VirtualMachine:
    """Feeds events to the scheduler in order of time and keeps what came of every query."""

    scheduler: Scheduler
    layer_ns: LayerTime
    now_ns: int = 0
    ended_ns: dict[int, int] = field(default_factory=dict)  # by query, however it ended
    outcome: dict[int, str] = field(default_factory=dict)  # by query: finished, rejected, failed or cancelled
    _due: list[tuple[int, int, Event | _Running]] = field(default_factory=list)
    _count: int = 0  # makes simultaneous entries first come, first served
    _running: dict[int, _Running] = field(default_factory=dict)

    def at(self, event: Event) -> None:
        """Puts in an event from outside. Cancelling a query that is not active then does
        nothing, nor does failing one that holds no worker."""
        self._push(event.time_ns, event)

    def preempt(self, query: int) -> None:
        """Stops the query's running block, if one runs, at its next layer; the query itself goes on."""
        if query in self._running:
            self._running[query].stop_early = True

    def run(self) -> Iterator[tuple[Event, list[Decision]]]:
        """Runs until nothing is left to happen; each event with what the scheduler decided."""
        while self._due:
            self.now_ns, _, entry = heappop(self._due)
            event = self._layer_done(entry) if isinstance(entry, _Running) else self._from_outside(entry)
            if event is None:
                continue
            decisions = self.scheduler.handle(event)
            for decision in decisions:
                self._carry_out(decision)
            yield event, decisions

    def _push(self, time_ns: int, entry: Event | _Running) -> None:
        self._count += 1
        heappush(self._due, (time_ns, self._count, entry))

    def _from_outside(self, event: Event) -> Event | None:
        system = self.scheduler.system
        match event:
            case QueryCancelled(query=query):
                if query not in system.waiting and query not in system.in_flight:
                    return None
                if query not in self._running:
                    self._end(query, "cancelled")
            case BlockFailed(query=query):
                if query not in system.in_flight:
                    return None
                self._running.pop(query, None)
                self._end(query, "failed")
        return event

    def _layer_done(self, running: _Running) -> Event | None:
        block = running.block
        if self._running.get(block.query) is not running:  # it failed meanwhile
            return None
        running.layer += 1
        if running.layer == block.stop or running.stop_early or running.cancelled:
            del self._running[block.query]
            if running.cancelled:
                self._end(block.query, "cancelled")
            return BlockFinished(self.now_ns, block.query, running.layer, self.now_ns - running.began_ns)
        grown = running.granted != running.core_set
        running.core_set = running.granted
        self._next_layer(running)
        return BlockGrown(self.now_ns, block.query, running.layer, running.core_set) if grown else None

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case StartBlock(block=block, core_set=core_set):
                running = _Running(block, core_set, core_set, self.now_ns, block.start)
                self._running[block.query] = running
                self._next_layer(running)
            case GrowBlock(query=query, core_set=core_set):
                self._running[query].granted = core_set
            case CancelQuery(query=query):
                self._running[query].cancelled = True
            case StopBlock(query=query):
                self.preempt(query)
            case FinishQuery(query=query):
                self._end(query, "finished")
            case RejectQuery(query=query):
                self._end(query, "rejected")

    def _next_layer(self, running: _Running) -> None:
        block, layer = running.block, running.layer
        version = block.versions[layer - block.start]
        self._push(self.now_ns + self.layer_ns(block.query, layer, version, len(running.core_set)), running)

    def _end(self, query: int, how: str) -> None:
        if query in self.outcome:
            raise InvariantError(f"query {query} ended twice: {self.outcome[query]}, then {how}")
        self.outcome[query], self.ended_ns[query] = how, self.now_ns
