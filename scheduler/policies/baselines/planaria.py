"""Planaria's scheduler (MICRO'20): the machine is cut anew for all queries whenever one arrives or ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from veltair.scheduler.costs import SOLO
from veltair.scheduler.policies.policy import Grow, Policy, Start, Step, Stop
from veltair.scheduler.state import Progress, System
from veltair.types import Record


class Task(Record, frozen=True):
    progress: Progress
    start: int  # the layer that it stands at
    slack_ns: int
    least: int | None  # m_i: the least cores that are in time

    @property
    def rest_ns(self) -> int:
        """What is left of it, on those or on all."""
        costs = self.progress.costs
        return costs.time_ns(SOLO, self.least or costs.cores, self.start, costs.layers)


class Planaria(Policy):
    """Every query has the whole rest of its model as its block, stopped at the next layer when its share changes.

    A new share waits for the cores that others still hold, or starts with what is free of it. Queries that cannot
    be in time get nothing while another can; none is refused, and none is promised a start.
    """

    def __init__(self) -> None:
        self._shares: dict[int, int] = {}  # cores by query
        self._cut_for = -1  # workers; -1: a query came or went since
        self._astray: Iterator[Progress] = iter(())  # run on another number of cores

    def query_arrived(self, progress: Progress, now_ns: int) -> None:
        self._cut_for = -1

    def query_ended(self, progress: Progress, now_ns: int) -> None:
        self._cut_for = -1

    def next_step(self, system: System, now_ns: int) -> Step | None:
        if self._cut_for != system.workers:
            self._cut_for = system.workers
            servable = (*system.in_flight.values(), *_startable(system))
            self._shares = shares([_task(progress, now_ns) for progress in servable], system.cores)
            self._astray = self._find_astray(system)
        if (astray := next(self._astray, None)) is not None:
            return Stop(astray)
        if not system.free:
            return None
        for progress in system.wanting():
            if (run := progress.run) is not None:
                if missing := run.missing_cores(now_ns):
                    return Grow(progress, min(missing, system.free))
            elif share := self._shares[progress.query.id]:
                return _start(progress, share)
        for progress in _startable(system):
            if share := self._shares[progress.query.id]:
                return _start(progress, share)
        return None

    def _find_astray(self, system: System) -> Iterator[Progress]:
        for progress in system.in_flight.values():
            run = progress.run
            if run is not None and run.block.cores != self._shares[progress.query.id] and not run.stopping:
                yield progress


def _startable(system: System) -> Iterator[Progress]:
    """As many of the waiting ones, in order of arrival, as there are workers for."""
    return islice(system.waiting.values(), max(0, system.workers - len(system.in_flight)))


def _task(progress: Progress, now_ns: int) -> Task:
    run, slack_ns = progress.run, progress.due_ns - now_ns
    start = progress.next_layer if run is None else run.layer_at(now_ns)
    least = progress.costs.cores_to_end(SOLO, start, slack_ns) if slack_ns > 0 else None
    return Task(progress, start, slack_ns, least)


def shares(tasks: list[Task], cores: int) -> dict[int, int]:
    """Cores by query id; at most `cores` together, and at least one query gets some (scheduler.py of planaria.code)."""
    granted = {task.progress.query.id: task.least or 0 for task in tasks}
    spare = cores - sum(granted.values())
    feasible = [
        (task.progress.tenant.priority / (task.slack_ns * task.least), task) for task in tasks if task.least is not None
    ]
    if not feasible or (len(feasible) == len(tasks) and spare >= 0):
        _spread(granted, tasks, spare)
        return granted
    feasible.sort(key=itemgetter(0), reverse=True)
    left = cores
    for _, task in feasible:
        id = task.progress.query.id
        granted[id] = min(granted[id], left)
        left -= granted[id]
    return granted


def _spread(granted: dict[int, int], tasks: list[Task], spare: int) -> None:
    """In proportion to priority over what is left, the highest first; what rounding leaves goes to the highest
    priority. Nobody gets more than the profile measured.
    """
    scored = [(task.progress.tenant.priority / task.rest_ns, task.progress) for task in tasks]
    total = sum([score for score, _ in scored])
    scored.sort(key=itemgetter(0), reverse=True)
    left = spare
    for score, progress in scored:
        id = progress.query.id
        more = min(round(spare * score / total), left, progress.costs.cores - granted[id])
        granted[id] += more
        left -= more
    if left:
        for _, progress in sorted(scored, key=lambda scored: -scored[1].tenant.priority):
            id = progress.query.id
            more = min(left, progress.costs.cores - granted[id])
            granted[id] += more
            left -= more


def _start(progress: Progress, share: int) -> Start:
    return Start(progress, progress.block(SOLO, progress.costs.layers, share), SOLO)
