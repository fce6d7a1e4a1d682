"""The interference proxy: at which level the machine stands now (section 4.3).

The level is the slowdown of a layer against running alone, 1.0 to 8.0. Three sources stand behind one interface;
each takes from what the scheduler sees the kind that it understands and ignores the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol, TypeAlias

from veltair.scheduler.costs.level_grid import nearest_level
from veltair.types import CounterSample, Record

HIGHEST_LEVEL = 8.0


class BlockTimed(Record, frozen=True):
    """A block ended: what it took, and what its profile says for the same layers, versions and cores alone."""

    elapsed_ns: int
    solo_ns: int  # 0 if it was stopped before its first layer


class DemandChanged(Record, frozen=True):
    """What the running blocks ask of the memory together, by their profiles."""

    bytes_per_ns: float  # = GB/s


Seen: TypeAlias = CounterSample | BlockTimed | DemandChanged


class Proxy(Protocol):
    """A source of the interference level. Holds state, reads no clock: the same sightings give the same level."""

    @property
    def name(self) -> str: ...
    @property
    def sees(self) -> type[Seen]:
        """The kind that it understands; it need not be told of others."""

    @property
    def level(self) -> float: ...
    def observe(self, seen: Seen) -> None: ...


class CounterModel:
    """Linear in the L3 miss rate and the L3 accesses, which carry 99 % of the variance (figure 11)."""

    name = "counters"
    sees = CounterSample

    def __init__(self, constant: float, per_miss_rate: float, per_access_per_ns: float) -> None:
        """The coefficients come from a fit against measured slowdowns; miss rate = misses / accesses, 0 … 1."""
        self.level = 1.0
        self._constant = constant
        self._per_miss_rate = per_miss_rate
        self._per_access_per_ns = per_access_per_ns

    def observe(self, seen: Seen) -> None:
        if not isinstance(seen, CounterSample) or seen.window_ns <= 0:
            return
        miss_rate = seen.l3_misses / seen.l3_accesses if seen.l3_accesses else 0.0
        accesses_per_ns = seen.l3_accesses / seen.window_ns
        level = self._constant + self._per_miss_rate * miss_rate + self._per_access_per_ns * accesses_per_ns
        self.level = _clamped(level)


class ObservedSlowdown:
    """The paper's definition of the level itself, measured: finished blocks against their solo profile, smoothed."""

    name = "observed"
    sees = BlockTimed

    def __init__(self, weight: float = 0.2) -> None:
        """`weight` is the latest block's share in the moving average."""
        self.level = 1.0
        self._weight = weight

    def observe(self, seen: Seen) -> None:
        if isinstance(seen, BlockTimed) and seen.solo_ns > 0:
            slowdown = seen.elapsed_ns / seen.solo_ns
            if not 1.0 <= slowdown <= HIGHEST_LEVEL:
                slowdown = _clamped(slowdown)
            self.level += self._weight * (slowdown - self.level)


class PredictedDemand:
    """The last resort, nothing measured: the factor by which the running blocks over-subscribe the memory."""

    name = "demand"
    sees = DemandChanged

    def __init__(self, memory_bytes_per_ns: float) -> None:
        """The bandwidth that the whole machine reaches, in bytes per ns (= GB/s)."""
        self.level = 1.0
        self._memory_bytes_per_ns = memory_bytes_per_ns

    def observe(self, seen: Seen) -> None:
        if isinstance(seen, DemandChanged):
            self.level = _clamped(seen.bytes_per_ns / self._memory_bytes_per_ns)


class SteadyLevel:
    """The level as an index into the grid, with hysteresis, so that noise does not flip the code versions."""

    __slots__ = ("_grid", "_high", "_low", "index")

    _PAST_THE_MIDDLE = 0.25  # of the distance to the neighbour, on top of the half

    def __init__(self, grid: Sequence[float]) -> None:
        self._grid = grid
        self._stand(0)

    def follow(self, level: float) -> int:
        """Moves to the nearest index once the level is clearly past the middle between two; returns the index."""
        if not self._low <= level <= self._high:
            self._stand(nearest_level(self._grid, level))
        return self.index

    def _stand(self, index: int) -> None:
        """At this index until the level leaves what is around it."""
        grid, reach = self._grid, 0.5 + self._PAST_THE_MIDDLE
        self.index = index
        self._low = grid[index] - reach * (grid[index] - grid[index - 1]) if index else -inf
        self._high = grid[index] + reach * (grid[index + 1] - grid[index]) if index + 1 < len(grid) else inf


def _clamped(level: float) -> float:
    return 1.0 if level < 1.0 else HIGHEST_LEVEL if level > HIGHEST_LEVEL else level
