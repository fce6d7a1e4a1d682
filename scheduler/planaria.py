"""Planaria's scheduler (MICRO'20): the machine is cut anew for all queries whenever one arrives or ends."""

from __future__ import annotations

from dataclasses import dataclass

from veltair.scheduler.costs import SOLO
from veltair.scheduler.policy import Grow, Policy, Start, Step, Stop
from veltair.scheduler.state import Progress, System


@dataclass(frozen=True, slots=True)
class Task:
    progress: Progress
    slack_ns: int
    least: int | None  # m_i: the least cores that are in time
    rest_ns: int  # on those, or on all


class Planaria(Policy):
    """Every query has the whole rest of its model as its block, stopped at the next layer when its share changes.

    A new share waits for the cores that others still hold, or starts with what is free of it. Queries that cannot
    be in time get nothing while another can; none is refused, and none is promised a start.
    """

    def __init__(self) -> None:
        self._shares: dict[int, int] = {}  # cores by query
        self._cut_for = -1  # workers; -1: a query came or went since

    def query_arrived(self, progress: Progress, now_ns: int) -> None:
        self._cut_for = -1

    def query_ended(self, progress: Progress, now_ns: int) -> None:
        self._cut_for = -1

    def next_step(self, system: System, now_ns: int) -> Step | None:
        if self._cut_for != system.workers:
            self._cut_for = system.workers
            self._shares = shares([_task(progress, now_ns) for progress in _servable(system)], system.cores)
        for progress in system.in_flight.values():
            run, share = progress.run, self._shares[progress.query.id]
            if run is None:
                if share and system.free:
                    return _start(progress, share)
            elif run.block.cores != share and not run.stopping:
                return Stop(progress)
            elif system.free and (missing := run.missing_cores(now_ns)):
                return Grow(progress, min(missing, system.free))
        if system.free:
            for progress in system.startable():
                if share := self._shares.get(progress.query.id, 0):
                    return _start(progress, share)
        return None


def _servable(system: System) -> list[Progress]:
    """The queries in flight, and as many of the waiting ones, in order of arrival, as there are workers for."""
    servable = list(system.in_flight.values())
    for progress in system.startable():
        if len(servable) == system.workers:
            break
        servable.append(progress)
    return servable


def _task(progress: Progress, now_ns: int) -> Task:
    costs, run = progress.costs, progress.run
    start = progress.next_layer if run is None else run.layer_at(now_ns)
    slack_ns = progress.due_ns - now_ns
    least = costs.cores_to_end(SOLO, start, slack_ns)
    rest_ns = costs.time_ns(SOLO, least or costs.cores, start, costs.layers)
    return Task(progress, slack_ns, least, rest_ns)


def shares(tasks: list[Task], cores: int) -> dict[int, int]:
    """Cores by query id; at most `cores` together, and at least one query gets some (scheduler.py of planaria.code)."""
    granted = {task.progress.query.id: 0 for task in tasks}
    needs = sum(task.least or 0 for task in tasks)
    if all(task.least is not None for task in tasks) and needs <= cores:
        for task in tasks:
            granted[task.progress.query.id] = task.least or 0
        _spread(granted, [(task.progress.tenant.priority / task.rest_ns, task) for task in tasks], cores - needs)
        return granted
    feasible = [
        (task.progress.tenant.priority / (task.slack_ns * task.least), task)
        for task in tasks
        if task.least is not None  # so the slack is above 0
    ]
    if not feasible:
        late = [(task.progress.tenant.priority / task.rest_ns, task) for task in tasks]
        _spread(granted, late, cores)
        return granted
    left = cores
    for _, task in sorted(feasible, key=lambda scored: -scored[0]):
        granted[task.progress.query.id] = min(task.least or 0, left)
        left -= granted[task.progress.query.id]
    return granted


def _spread(granted: dict[int, int], scored: list[tuple[float, Task]], spare: int) -> None:
    """In proportion to the score, the highest first; what rounding leaves goes to the highest priority."""
    total = sum(score for score, _ in scored)
    left = spare
    for score, task in sorted(scored, key=lambda scored: -scored[0]):
        left -= _give(granted, task, min(round(spare * score / total), left))
    for _, task in sorted(scored, key=lambda scored: (-scored[1].progress.tenant.priority, -scored[0])):
        left -= _give(granted, task, left)


def _give(granted: dict[int, int], task: Task, more: int) -> int:
    """Up to what the profile measured; returns what was given."""
    more = min(more, task.progress.costs.cores - granted[task.progress.query.id])
    granted[task.progress.query.id] += more
    return more


def _start(progress: Progress, share: int) -> Start:
    return Start(progress, progress.block(SOLO, progress.costs.layers, share), SOLO)
