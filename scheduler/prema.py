"""PREMA (HPCA'20, Alg. 2): one query at a time owns the machine, chosen by tokens, then by shortest remaining time."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from veltair.scheduler.costs import SOLO
from veltair.scheduler.policy import Policy, Start, Step, Stop
from veltair.scheduler.state import Progress, System

LEVELS = (9, 3, 1)  # tokens; also the priorities high, medium and low


class Prema(Policy):
    """A query starts with its priority in tokens and earns priority x waited / isolated time while it waits.

    The choice is made anew between layers. It can change only when a query arrives or when the tokens of one that
    waits reach a level, which is foreseen: a block ends at the first layer boundary after that.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, float] = {}  # by query, as of its `ready_ns`
        self._arrived = False

    def query_arrived(self, progress: Progress, now_ns: int) -> None:
        self._tokens[progress.query.id] = float(progress.tenant.priority)
        self._arrived = True

    def query_ended(self, progress: Progress, now_ns: int) -> None:
        del self._tokens[progress.query.id]

    def next_step(self, system: System, now_ns: int) -> Step | None:
        owner = next((progress for progress in system.in_flight.values() if progress.run is not None), None)
        if owner is not None and not self._arrived:
            return None
        self._arrived = False
        ready = [*system.in_flight.values(), *system.startable()]
        if not ready:
            return None
        tokens = {progress.query.id: self._tokens_of(progress, now_ns) for progress in ready}
        threshold = threshold_of(max(tokens.values()))
        candidates = [progress for progress in ready if tokens[progress.query.id] >= threshold]
        best = min(candidates, key=lambda progress: _rest_ns(progress, now_ns))
        if owner is None:
            self._tokens[best.query.id] = tokens[best.query.id]
            horizon_ns = min(self._level_times_ns(best, ready, tokens, threshold), default=None)
            return _start(best, horizon_ns)
        if best is owner or owner.run is None or owner.run.stopping:
            return None
        return Stop(owner)

    def _tokens_of(self, progress: Progress, now_ns: int) -> float:
        tokens = self._tokens[progress.query.id]
        if progress.run is None:
            tokens += _rate(progress) * (now_ns - progress.ready_ns)
        return tokens

    def _level_times_ns(
        self, owner: Progress, ready: list[Progress], tokens: dict[int, float], threshold: int
    ) -> Iterator[float]:
        """From now: when the waiting ones reach the threshold, and the levels above it that raise it."""
        for progress in ready:
            if progress is not owner:
                now = tokens[progress.query.id]
                yield from ((level - now) / _rate(progress) for level in LEVELS if level >= threshold and level > now)


def threshold_of(most: float) -> int:
    """The largest level that the greatest token count reaches."""
    return next((level for level in LEVELS if level <= most), LEVELS[-1])


def _rate(progress: Progress) -> float:
    """Tokens per ns of waiting."""
    return progress.tenant.priority / progress.costs.least_rest_ns(SOLO, 0)


def _rest_ns(progress: Progress, now_ns: int) -> int:
    run = progress.run
    return progress.costs.least_rest_ns(SOLO, progress.next_layer) if run is None else max(0, run.ends_ns - now_ns)


def _start(progress: Progress, horizon_ns: float | None) -> Start:
    costs, start = progress.costs, progress.next_layer
    cores = costs.fastest_cores(SOLO, start, costs.layers, costs.cores)
    stop = costs.layers
    if horizon_ns is not None:
        stop = min(stop, costs.layer_after(SOLO, cores, start, ceil(horizon_ns) - 1) + 1)
    return Start(progress, progress.block(SOLO, stop, cores), SOLO)
