"""A machine in virtual time: carries out a scheduler's decisions, block by block.

It drives the same Scheduler as the daemon does, faithfully to what a worker does: core sets, stops and
cancellations are looked at between two layers (or growth at once, where the scheduler counts on it). How fast a
block goes is its surroundings' to say, and may change whenever other blocks come and go: what is left of it is then
rescaled. Everything that varies is an argument, so a run is repeatable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
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
from veltair.simulate.interference_model import FRONT, InterferenceModel, Timeline
from veltair.types import CoreSet, LayerBlock, State

# What happens when its time, which it is given, has come; the scheduler hears of what it returns.
Reading: TypeAlias = Callable[[int], Event | None]

_NOT_KNOWN: Timeline = (0.0,)  # a block's, until its surroundings have said it


class GrowthInsideLayers(BlockGrowth):
    """Blocks of this machine take up granted cores at once, inside a layer, as the paper assumes (section 3.2).

    >>> GrowthInsideLayers().can_grow(LayerBlock(query=1, start=0, stop=1, versions=(0,), cores=4, predicted_ns=100))
    True
    """

    def can_grow(self, block: LayerBlock) -> bool:
        return True

    def knows_solo_time(self, run: RunningBlock) -> bool:
        return len(run.stretches) == 1  # it is not known which part of a layer ran on which cores


class _Running(State):
    block: LayerBlock
    granted: CoreSet
    core_set: CoreSet  # in use
    began_ns: int
    since_ns: float  # when it stood at `done_ns` of its course; later than now while it waits for cores to wake
    course: Timeline = _NOT_KNOWN
    done_ns: float = 0.0
    due: int = 0  # the number of its entry that counts, others are out of date
    halt: int = 0  # layers of the block that are done then
    cancelled: int | None = None  # the last query that waited for it
    stop_early: bool = False

    def layer(self, now_ns: float) -> int:
        """Moves its mark to now and returns how many of its layers are done."""
        if now_ns > self.since_ns:
            self.done_ns += now_ns - self.since_ns
            self.since_ns = now_ns
        layer, layers = bisect_right(self.course, self.done_ns) - 1, len(self.block.versions)
        return layer if layer < layers else layers - 1

    def follow(self, course: Timeline, now_ns: float) -> None:
        """What is done of the layer in execution stays done; the rest goes as the new course says."""
        before = self.course
        layer = self.layer(now_ns)
        took_ns, takes_ns = before[layer + 1] - before[layer], course[layer + 1] - course[layer]
        share = (self.done_ns - before[layer]) / took_ns if took_ns else 0.0
        self.course, self.done_ns = course, course[layer] + (share if share < 1.0 else 1.0) * takes_ns


_Entry: TypeAlias = tuple[int, int, Event | Reading | _Running]  # when, number, what


@dataclass(slots=True)
class VirtualMachine:
    """Feeds events to the scheduler in order of time and keeps what came of every query."""

    scheduler: Scheduler
    surroundings: InterferenceModel
    dispatch_ns: int = 0  # from the decision to start a block to its first layer
    now_ns: int = 0
    ended_ns: dict[int, int] = field(default_factory=dict)  # by query, however it ended
    outcome: dict[int, str] = field(default_factory=dict)  # by query: finished, rejected, failed or cancelled
    _planned: list[_Entry] = field(default_factory=list)  # before it began to run, the first last
    _due: list[_Entry] = field(default_factory=list)  # a heap
    _errands: deque[tuple[float, Reading]] = field(default_factory=deque)  # the front end is at the first
    _count: int = 0  # makes simultaneous entries first come, first served
    _running: dict[int, _Running] = field(default_factory=dict)
    _stopped: dict[int, int] = field(default_factory=dict)  # by query: cores that its block had when it was stopped

    def at(self, event: Event) -> None:
        """Puts in an event from outside. Cancelling a query that is not active then does
        nothing, nor does failing one that holds no worker."""
        self._push(event.time_ns, event)

    def preempt(self, query: int) -> None:
        """Stops the query's running block, if one runs, at its next layer; the query itself goes on."""
        if query in self._running:
            self._running[query].stop_early = True
            self._schedule(self._running[query])

    def every(self, period_ns: int, read: Reading) -> None:
        """Takes a reading, such as of counters, once every so often until nothing else is left to happen."""

        def again(now_ns: int) -> Event | None:
            if self._due or self._planned:
                self._push(now_ns + period_ns, again)
            return read(now_ns)

        self._push(self.now_ns + period_ns, again)

    def when(self, time_ns: int, read: Reading) -> None:
        self._push(time_ns, read)

    def errand(self, work_ns: float, then: Reading) -> None:
        """Work for the front end, after all that it has already, and what happens when it is done."""
        self._errands.append((work_ns, then))
        if len(self._errands) == 1:
            self._attend()
            self._follow()

    def run(self) -> Iterator[tuple[Event, list[Decision]]]:
        """Runs until nothing is left to happen; each event with what the scheduler decided."""
        due, planned, handle = self._due, self._planned, self.scheduler.handle
        planned += due
        planned.sort(reverse=True)
        due[:], latest = planned[-1:], self._count
        del planned[-1:]
        event: Event | None
        while due:
            time_ns, number, entry = heappop(due)
            if number <= latest and planned:
                heappush(due, planned.pop())  # one at a time, so that the heap stays as small as what runs
            if isinstance(entry, _Running):
                if entry.due != number:
                    continue
                self.now_ns = time_ns
                event = self._halted(entry) if entry.block.query != FRONT else self._attended()
            else:
                self.now_ns = time_ns
                event = entry(time_ns) if callable(entry) else entry
                if event is not None and not self._concerns(event):
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
        for query, course in self.surroundings.changed():
            running = self._running[query]
            if running.course is _NOT_KNOWN:  # it begins
                running.course = course
            else:
                running.follow(course, now_ns)
            self._schedule(running)

    def _attend(self) -> None:
        work_ns, _ = self._errands[0]
        block = LayerBlock(FRONT, 0, 1, (0,), 0, round(work_ns))
        self._running[FRONT] = _Running(block, (), (), self.now_ns, self.now_ns)
        self.surroundings.attend(work_ns)

    def _attended(self) -> Event | None:
        _, then = self._errands.popleft()
        if self._errands:
            self._attend()
        else:
            del self._running[FRONT]
            self.surroundings.attend(0.0)
        return then(self.now_ns)

    def _push(self, time_ns: int, entry: Event | Reading) -> None:
        self._count += 1
        heappush(self._due, (time_ns, self._count, entry))

    def _concerns(self, event: Event) -> bool:
        """Takes an event from outside to the blocks; whether the scheduler should hear of it."""
        state = self.scheduler.state
        match event:
            case QueryCancelled(query=query):
                leader = state.leader_of.get(query) or state.in_flight.get(query) or state.waiting.get(query)
                if leader is None or query in self.outcome:
                    return False
                if leader.query.id not in self._running or any(each.query.id != query for each in leader.awaited()):
                    self._end(query, "cancelled")
                else:
                    self._running[leader.query.id].cancelled = query
            case BlockFailed(query=query):
                if query not in state.in_flight:
                    return False
                lost = [each.query.id for each in state.in_flight[query].awaited()]
                if (running := self._running.get(query)) is not None:
                    self._leave(running)
                    lost += [] if running.cancelled is None else [running.cancelled]
                for each in lost:
                    self._end(each, "failed")
            case BlockGrown(query=query):
                return query in self._running  # it may have failed at the same moment
        return True

    def _halted(self, running: _Running) -> Event:
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
        running.done_ns, running.since_ns = running.course[running.halt], float(self.now_ns)
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
                if isinstance(self.scheduler.state.growth, GrowthInsideLayers):
                    self._grow_now(running)
                else:
                    self._schedule(running)
            case CancelQuery(query=query):
                self._schedule(self._running[query])
            case StopBlock(query=query):
                self.preempt(query)
            case FinishQuery(query=query):
                self._end(query, "finished")
            case RejectQuery(query=query):
                self._end(query, "rejected")

    def _begin(self, block: LayerBlock, core_set: CoreSet) -> None:
        begin_ns = self.now_ns + self.dispatch_ns
        running = _Running(block, core_set, core_set, begin_ns, begin_ns)
        grown = block.query in self._stopped and len(core_set) > self._stopped.pop(block.query)
        profile = self.scheduler.state.in_flight[block.query].costs.profile
        running.since_ns += self.surroundings.enter(block, core_set, profile, grown)
        self._running[block.query] = running

    def _grow_now(self, running: _Running) -> None:
        """What is left of the layer in execution goes on more cores, too, once these are awake."""
        layer = running.block.start + running.layer(self.now_ns)
        running.core_set = running.granted
        running.since_ns = max(running.since_ns, float(self.now_ns)) + self._enter_grown(running)
        self._push(self.now_ns, BlockGrown(self.now_ns, running.block.query, layer, running.core_set))

    def _enter_grown(self, running: _Running) -> float:
        profile = self.scheduler.state.in_flight[running.block.query].costs.profile
        return self.surroundings.enter(running.block, running.core_set, profile, grown=True)

    def _leave(self, running: _Running) -> None:
        running.due = 0
        del self._running[running.block.query]
        self.surroundings.leave(running.block.query)

    def _schedule(self, running: _Running) -> None:
        """Looks up when the block next needs attention: at its end, or at its next layer if something waits there."""
        course = running.course
        if course is _NOT_KNOWN:  # started at this very moment: it follows
            return
        halt = len(course) - 1
        if running.granted is not running.core_set or running.stop_early or running.cancelled is not None:
            halt = running.layer(self.now_ns) + 1
        self._count += 1
        running.halt, running.due = halt, self._count
        heappush(self._due, (ceil(running.since_ns + (course[halt] - running.done_ns)), self._count, running))

    def _end(self, query: int, how: str) -> None:
        if query in self.outcome:
            raise InvariantError(f"query {query} ended twice: {self.outcome[query]}, then {how}")
        self.outcome[query], self.ended_ns[query] = how, self.now_ns
