"""PREMA (HPCA'20, Alg. 2): one query at a time owns the machine, chosen by tokens, then by shortest remaining time."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from operator import attrgetter

from veltair.scheduler.costs import SOLO, Costs
from veltair.scheduler.policies.policy import Policy, Start, Step, Stop
from veltair.scheduler.state import Progress, System

LEVELS = (9, 3, 1)  # tokens; also the priorities high, medium and low


class Prema(Policy):
    """A query starts with its priority in tokens and earns priority x waited / isolated time while it waits.

    The choice is made anew between layers. It can change only when a query arrives or when the tokens of one that
    waits reach a level, which is foreseen: a block ends at the first layer boundary after that.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, float] = {}  # of those in flight, as of their `ready_ns`
        # Those that have not started, in order of arrival. Of a tenant's that take the same time none is chosen, nor
        # reaches a level, before the first.
        self._queues: dict[tuple[str, Costs], dict[int, Progress]] = {}
        self._arrived = False

    def query_arrived(self, progress: Progress, now_ns: int) -> None:
        self._queue(progress)[progress.query.id] = progress
        self._arrived = True

    def query_ended(self, progress: Progress, now_ns: int) -> None:
        self._queue(progress).pop(progress.query.id, None)
        self._tokens.pop(progress.query.id, None)

    def next_step(self, system: System, now_ns: int) -> Step | None:
        if system.runs and not self._arrived:
            return None
        self._arrived = False
        ready = self._ready(system)
        if not ready:
            return None
        tokens = [self._tokens_of(progress, now_ns) for progress in ready]
        threshold = threshold_of(max(tokens))
        candidates = [progress for progress, held in zip(ready, tokens, strict=True) if held >= threshold]
        best = min(candidates, key=lambda progress: _rest_ns(progress, now_ns))
        if not system.runs:
            self._tokens[best.query.id] = self._tokens_of(best, now_ns)
            self._queue(best).pop(best.query.id, None)
            others = (progress for progress in self._ready(system) if progress is not best)
            return _start(best, min(self._level_times_ns(others, threshold, now_ns), default=None))
        owner = system.in_flight[next(iter(system.runs))]
        if best is owner or owner.run is None or owner.run.stopping:
            return None
        return Stop(owner)

    def _queue(self, progress: Progress) -> dict[int, Progress]:
        return self._queues.setdefault((progress.tenant.name, progress.costs), {})

    def _ready(self, system: System) -> list[Progress]:
        """All that may be chosen, but for those that have one of their own kind before them."""
        in_flight = list(system.in_flight.values())
        if len(in_flight) >= system.workers:
            return in_flight
        heads = (next(iter(queue.values())) for queue in self._queues.values() if queue)
        return in_flight + sorted(heads, key=attrgetter("ready_ns"))

    def _tokens_of(self, progress: Progress, now_ns: int) -> float:
        tokens = self._tokens.get(progress.query.id, float(progress.tenant.priority))
        if progress.run is None:
            tokens += _rate(progress) * (now_ns - progress.ready_ns)
        return tokens

    def _level_times_ns(self, waiting: Iterator[Progress], threshold: int, now_ns: int) -> Iterator[float]:
        """From now: when those that wait reach the threshold, and the levels above it that raise it."""
        for progress in waiting:
            now = self._tokens_of(progress, now_ns)
            yield from ((level - now) / _rate(progress) for level in LEVELS if level >= threshold and level > now)


def threshold_of(most: float) -> int:
    """The largest level that the greatest token count reaches."""
    return next((level for level in LEVELS if level <= most), LEVELS[-1])


def _rate(progress: Progress) -> float:
    """Tokens per ns of waiting."""
    return progress.tenant.priority / progress.costs.least_rest_ns[SOLO][0]


def _rest_ns(progress: Progress, now_ns: int) -> int:
    run = progress.run
    return progress.costs.least_rest_ns[SOLO][progress.next_layer] if run is None else max(0, run.ends_ns - now_ns)


def _start(progress: Progress, horizon_ns: float | None) -> Start:
    costs, start = progress.costs, progress.next_layer
    stop = costs.layers
    cores = costs.fastest_cores(SOLO, start, stop, costs.cores)
    if horizon_ns is not None:
        time_ns = costs.time_ns(SOLO, cores, start, stop)
        stop = costs.layer_at(SOLO, cores, start, stop, time_ns - ceil(horizon_ns) + 1, time_ns) + 1
    return Start(progress, progress.block(SOLO, stop, cores), SOLO)
