"""A machine in virtual time: carries out a scheduler's decisions, block by block.

It drives the same Scheduler as the daemon does and behaves as a worker does: core sets, stops and cancellations take
effect between two layers (growth at once, if the scheduler was made with `GrowthInsideLayers`). The interference
model says how fast a block goes; that may change whenever other blocks come and go, and the rest of the block is then
rescaled. Everything that varies is an argument, so a run is repeatable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf
from typing import TypeAlias

from veltair.errors import InvariantError
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CancelQuery,
    Decision,
    Event,
    FinishQuery,
    GrowBlock,
    QueryCancelled,
    RejectQuery,
    StartBlock,
    StopBlock,
)
from veltair.scheduler.running_block import BlockGrowth, RunningBlock
from veltair.scheduler.scheduler import Scheduler
from veltair.simulation.block_execution import UNKNOWN, BlockExecution, Execution
from veltair.simulation.interference_model import InterferenceModel
from veltair.types import CoreSet, LayerBlock

# Called with the time when it has come; the scheduler gets the event that it returns.
Callback: TypeAlias = Callable[[int], Event | None]


class GrowthInsideLayers(BlockGrowth):
    """Blocks of this machine take up granted cores at once, inside a layer, as the paper assumes (section 3.2).

    >>> GrowthInsideLayers().can_grow(LayerBlock(query=1, start=0, stop=1, versions=(0,), cores=4, predicted_ns=100))
    True
    """

    def __init__(self, wakes_once: bool = True) -> None:
        """`wakes_once`: a layer in conflict pays once for the threads that it spawns (fig. 5b), else at each growth."""
        self.wakes_once = wakes_once

    def can_grow(self, block: LayerBlock) -> bool:
        return True

    def knows_solo_time(self, run: RunningBlock) -> bool:
        return len(run.stretches) == 1  # it is not known which part of a layer ran on which cores


_Entry: TypeAlias = tuple[int, int, Event | Callback | Execution]  # when, number, what


@dataclass(slots=True)
class VirtualMachine:
    """Feeds events to the scheduler in order of time and records how every query ended.

    ::

        virtual = VirtualMachine(scheduler, Alone(solo_times(scheduler)))
        virtual.add_event(QueryArrived(0, Query(1, "shop", arrival_ns=0)))
        for event, decisions in virtual.run():
            print(event, decisions)
    """

    scheduler: Scheduler
    interference: InterferenceModel
    dispatch_ns: int = 0  # from the decision to start a block to its first layer
    now_ns: int = 0
    ended_ns: dict[int, int] = field(default_factory=dict)  # by query, however it ended
    outcome: dict[int, str] = field(default_factory=dict)  # by query: finished, rejected, failed or cancelled
    _planned: list[_Entry] = field(default_factory=list)  # before it began to run, the first last
    _due: list[_Entry] = field(default_factory=list)  # a heap
    _front_end_work: deque[tuple[float, Callback]] = field(default_factory=deque)  # the first is in execution
    _front_end: Execution | None = None  # that one
    _count: int = 0  # makes simultaneous entries first come, first served
    _running: dict[int, BlockExecution] = field(default_factory=dict)
    _stopped: dict[int, int] = field(default_factory=dict)  # by query: cores that its block had when it was stopped

    def add_event(self, event: Event) -> None:
        """Adds an event from outside. Cancelling a query that is not active at its time does nothing, and neither does
        failing one that holds no worker.
        """
        self._push(event.time_ns, event)

    def call_every(self, period_ns: int, callback: Callback) -> None:
        """Calls back once in every period, such as to read counters, until nothing else is left to happen."""

        def again(now_ns: int) -> Event | None:
            if self._due or self._planned:
                self._push(now_ns + period_ns, again)
            return callback(now_ns)

        self._push(self.now_ns + period_ns, again)

    def call_at(self, time_ns: int, callback: Callback) -> None:
        """Calls back at that time."""
        self._push(time_ns, callback)

    def add_front_end_work(self, work_ns: float, then: Callback) -> None:
        """Queues work of the front end behind all that it has, and calls back when it is done."""
        self._front_end_work.append((work_ns, then))
        if len(self._front_end_work) == 1:
            self._begin_front_end_work()
            self._follow()

    def run(self, until_ns: float = inf) -> Iterator[tuple[Event, list[Decision]]]:
        """Runs what happens before `until_ns`, by default until nothing is left; each event with what the scheduler
        decided. A later call goes on from there.
        """
        due, planned, handle = self._due, self._planned, self.scheduler.handle
        planned += due
        planned.sort(reverse=True)
        due[:], latest = planned[-1:], self._count
        del planned[-1:]
        event: Event | None
        while due and due[0][0] < until_ns:
            time_ns, number, entry = heappop(due)
            if number <= latest and planned:
                heappush(due, planned.pop())  # one at a time, so that the heap stays as small as what runs
            if isinstance(entry, Execution):
                if entry.entry != number:
                    continue
                self.now_ns = time_ns
                event = self._halt(entry) if isinstance(entry, BlockExecution) else self._finish_front_end_work()
            else:
                self.now_ns = time_ns
                event = entry(time_ns) if callable(entry) else entry
                if event is not None and not self._apply(event):
                    continue
            if event is None:
                self._follow()
                continue
            decisions = handle(event)
            for decision in decisions:
                self._carry_out(decision)
            self._follow()
            yield event, decisions

    def _follow(self) -> None:
        now_ns = self.now_ns
        for query, timeline in self.interference.changed():
            running = self._front_end if query is None else self._running[query]
            if running is None:
                raise InvariantError("the interference model knows of front-end work that there is not")
            if running.timeline is UNKNOWN:  # it begins
                running.timeline = timeline
            else:
                running.follow(timeline, now_ns)
            self._schedule(running)

    def _begin_front_end_work(self) -> None:
        work_ns, _ = self._front_end_work[0]
        self._front_end = Execution(layers=1, since_ns=self.now_ns)
        self.interference.set_front_end_work(work_ns)

    def _finish_front_end_work(self) -> Event | None:
        _, then = self._front_end_work.popleft()
        if self._front_end_work:
            self._begin_front_end_work()
        else:
            self._front_end = None
            self.interference.set_front_end_work(0.0)
        return then(self.now_ns)

    def _push(self, time_ns: int, entry: Event | Callback) -> None:
        self._count += 1
        heappush(self._due, (time_ns, self._count, entry))

    def _apply(self, event: Event) -> bool:
        """Applies an event from outside to the blocks; returns whether the scheduler should get it."""
        state = self.scheduler.state
        match event:
            case QueryCancelled(query=query):
                leader = state.leader_of.get(query) or state.in_flight.get(query) or state.waiting.get(query)
                if leader is None or query in self.outcome:
                    return False
                if leader.query.id not in self._running or any(each.query.id != query for each in leader.live_queries):
                    self._end(query, "cancelled")
                else:
                    self._running[leader.query.id].cancelled = query
            case BlockFailed(query=query):
                if query not in state.in_flight:
                    return False
                lost = [each.query.id for each in state.in_flight[query].live_queries]
                if (running := self._running.get(query)) is not None:
                    self._leave(running)
                    lost += [] if running.cancelled is None else [running.cancelled]
                for each in lost:
                    self._end(each, "failed")
            case BlockGrown(query=query):
                return query in self._running  # it may have failed at the same moment
        return True

    def _halt(self, running: BlockExecution) -> Event:
        """The block has reached its end, or the layer boundary where something was to happen."""
        block = running.block
        layer = block.start + running.halt
        if layer == block.stop or running.stop_early or running.cancelled is not None:
            self._leave(running)
            if layer < block.stop and running.cancelled is None:
                self._stopped[block.query] = len(running.core_set)
            if running.cancelled is not None:
                self._end(running.cancelled, "cancelled")
            return BlockFinished(self.now_ns, block.query, layer, self.now_ns - running.began_ns)
        running.core_set = running.granted
        running.done_ns, running.since_ns = running.timeline[running.halt], float(self.now_ns)
        running.since_ns += self._enter_grown(running)
        self._schedule(running)
        return BlockGrown(self.now_ns, block.query, layer, running.core_set)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case StartBlock():
                self._begin(decision.block, decision.core_set)
            case GrowBlock(query=query, core_set=core_set):
                running = self._running[query]
                running.granted = core_set
                if isinstance(growth := self.scheduler.state.growth, GrowthInsideLayers):
                    self._grow_now(running, growth.wakes_once)
                else:
                    self._schedule(running)
            case CancelQuery(query=query):
                self._schedule(self._running[query])
            case StopBlock(query=query):
                running = self._running[query]
                running.stop_early = True
                self._schedule(running)
            case FinishQuery(query=query):
                self._end(query, "finished")
            case RejectQuery(query=query):
                self._end(query, "rejected")

    def _begin(self, block: LayerBlock, core_set: CoreSet) -> None:
        begin_ns = self.now_ns + self.dispatch_ns
        running = BlockExecution(
            layers=len(block.versions),
            since_ns=begin_ns,
            block=block,
            granted=core_set,
            core_set=core_set,
            began_ns=begin_ns,
        )
        grown = block.query in self._stopped and len(core_set) > self._stopped.pop(block.query)
        profile = self.scheduler.state.in_flight[block.query].costs.profile
        waits_ns = self.interference.enter(block, core_set, profile, grown)
        running.since_ns += waits_ns
        if not grown:
            running.began_ns += round(waits_ns)  # a worker's clock starts once its threads are awake
        self._running[block.query] = running

    def _grow_now(self, running: BlockExecution, wakes_once: bool) -> None:
        """The rest of the layer in execution goes on more cores, too, once these are awake."""
        layer = running.block.start + running.current_layer(self.now_ns)
        running.core_set = running.granted
        wakes = not wakes_once or layer != running.grown_layer
        running.since_ns = max(running.since_ns, float(self.now_ns)) + self._enter_grown(running, wakes)
        running.grown_layer = layer
        self._push(self.now_ns, BlockGrown(self.now_ns, running.block.query, layer, running.core_set))

    def _enter_grown(self, running: BlockExecution, wakes: bool = True) -> float:
        profile = self.scheduler.state.in_flight[running.block.query].costs.profile
        return self.interference.enter(running.block, running.core_set, profile, grown=wakes)

    def _leave(self, running: BlockExecution) -> None:
        running.entry = 0
        del self._running[running.block.query]
        self.interference.leave(running.block.query)

    def _schedule(self, running: Execution) -> None:
        """Queues the moment when the work next needs attention: its end, or its next layer if it halts there."""
        timeline = running.timeline
        if timeline is UNKNOWN:  # it started at this very moment; its timeline follows
            return
        halt = len(timeline) - 1
        if running.halts_at_next_layer:
            halt = running.current_layer(self.now_ns) + 1
        self._count += 1
        running.halt, running.entry = halt, self._count
        heappush(self._due, (ceil(running.since_ns + (timeline[halt] - running.done_ns)), self._count, running))

    def _end(self, query: int, how: str) -> None:
        if query in self.outcome:
            raise InvariantError(f"query {query} ended twice: {self.outcome[query]}, then {how}")
        self.outcome[query], self.ended_ns[query] = how, self.now_ns
