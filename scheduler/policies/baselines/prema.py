"""PREMA (HPCA'20, Alg. 2): one query at a time owns the machine, chosen by tokens, then by shortest remaining time."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from operator import attrgetter

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Start, Step, Stop

LEVELS = (9, 3, 1)  # tokens; also the priorities high, medium and low


class Prema(Policy):
    """A query starts with its priority in tokens and earns priority x waited / isolated time while it waits.

    The choice is made again between layers. It can change only when a query arrives or when the tokens of one that
    waits reach a level, which can be computed: a block ends at the first layer boundary after that.

    It fails on many cores: one query at a time cannot use them, and the others wait.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("prema")).__name__
    'Prema'
    """

    def __init__(self) -> None:
        self._tokens: dict[int, float] = {}  # of those in flight, as of their `ready_ns`
        # Those that have not started, in order of arrival. Of a tenant's that take the same time none is chosen, nor
        # reaches a level, before the first.
        self._queues: dict[tuple[str, ProfileCosts], dict[int, ActiveQuery]] = {}
        self._arrived = False

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:
        self._queue(active)[active.query.id] = active
        self._arrived = True

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:
        self._queue(active).pop(active.query.id, None)
        self._tokens.pop(active.query.id, None)

    def tenant_removed(self, tenant: str) -> None:
        self._queues = {key: queue for key, queue in self._queues.items() if key[0] != tenant}

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        if state.running_blocks and not self._arrived:
            return None
        self._arrived = False
        ready = self._ready(state)
        if not ready:
            return None
        tokens = [self._tokens_of(active, now_ns) for active in ready]
        threshold = threshold_of(max(tokens))
        candidates = [active for active, held in zip(ready, tokens, strict=True) if held >= threshold]
        best = min(candidates, key=lambda active: _rest_ns(active, now_ns))
        if not state.running_blocks:
            self._tokens[best.query.id] = self._tokens_of(best, now_ns)
            self._queue(best).pop(best.query.id, None)
            others = (active for active in self._ready(state) if active is not best)
            return _start(best, min(self._level_times_ns(others, threshold, now_ns), default=None))
        owner = state.in_flight[next(iter(state.running_blocks))]
        if best is owner or owner.state is not QueryState.RUNNING:
            return None
        return Stop(owner)

    def _queue(self, active: ActiveQuery) -> dict[int, ActiveQuery]:
        return self._queues.setdefault((active.tenant.name, active.costs), {})

    def _ready(self, state: SchedulerState) -> list[ActiveQuery]:
        """The queries that may be chosen: those in flight, and the first of each kind that waits."""
        in_flight = list(state.in_flight.values())
        if len(in_flight) >= state.workers:
            return in_flight
        heads = (next(iter(queue.values())) for queue in self._queues.values() if queue)
        return in_flight + sorted(heads, key=attrgetter("ready_ns"))

    def _tokens_of(self, active: ActiveQuery, now_ns: int) -> float:
        tokens = self._tokens.get(active.query.id, float(active.tenant.priority))
        if active.run is None:
            tokens += _rate(active) * (now_ns - active.ready_ns)
        return tokens

    def _level_times_ns(self, waiting: Iterator[ActiveQuery], threshold: int, now_ns: int) -> Iterator[float]:
        """Times from now: when those that wait reach the threshold, and the levels above it that raise it."""
        for active in waiting:
            now = self._tokens_of(active, now_ns)
            yield from ((level - now) / _rate(active) for level in LEVELS if level >= threshold and level > now)


def threshold_of(most: float) -> int:
    """The largest level that the greatest token count reaches."""
    return next((level for level in LEVELS if level <= most), LEVELS[-1])


def _rate(active: ActiveQuery) -> float:
    """Tokens per ns of waiting."""
    return active.tenant.priority / active.costs.least_rest_ns[SOLO][0]


def _rest_ns(active: ActiveQuery, now_ns: int) -> int:
    run = active.run
    return active.costs.least_rest_ns[SOLO][active.next_layer] if run is None else max(0, run.ends_ns - now_ns)


def _start(active: ActiveQuery, horizon_ns: float | None) -> Start:
    costs, start = active.costs, active.next_layer
    stop = costs.layers
    cores = costs.fastest_cores(SOLO, start, stop, costs.cores)
    if horizon_ns is not None:
        time_ns = costs.time_ns(SOLO, cores, start, stop)
        stop = costs.layer_at(SOLO, cores, start, stop, time_ns - ceil(horizon_ns) + 1, time_ns) + 1
    return Start(active, active.next_block(SOLO, stop, cores), SOLO)
