"""The interference proxy: which level of interference the machine is at now (section 4.3).

The level is the slowdown of a layer against running alone, 1.0 to 8.0. Three sources stand behind one interface;
each takes from what the scheduler observes the kind that it understands and ignores the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import ClassVar, Protocol, TypeAlias

from veltair.scheduler.costs.level_grid import nearest_level
from veltair.types import CounterSample, Record

HIGHEST_LEVEL = 8.0


class BlockTimed(Record, frozen=True):
    """A block ended: what it took, and what its profile says for the same layers, versions and cores alone.

    >>> BlockTimed(elapsed_ns=30, solo_ns=10).solo_ns
    10
    """

    elapsed_ns: int
    solo_ns: int  # 0 if it was stopped before its first layer


class DemandChanged(Record, frozen=True):
    """The memory bandwidth that the running blocks need together, by their profiles.

    >>> DemandChanged(bytes_per_ns=150.0).bytes_per_ns
    150.0
    """

    bytes_per_ns: float  # = GB/s


Observation: TypeAlias = CounterSample | BlockTimed | DemandChanged


class InterferenceProxy(Protocol):
    """A source of the interference level. It reads no clock: the same observations give the same level."""

    @property
    def name(self) -> str: ...
    @property
    def observes(self) -> type[Observation]:
        """The kind that it understands; it need not get others."""

    @property
    def settings(self) -> dict[str, float]:
        """The arguments that make an equal one; an event log keeps them."""

    @property
    def level(self) -> float: ...
    def observe(self, observation: Observation) -> None: ...


class CounterModel:
    """Linear in the L3 miss rate and the L3 accesses, which carry 99 % of the variance (figure 11).

    >>> model = CounterModel(constant=1.0, per_miss_rate=2.0, per_access_per_ns=0.0)
    >>> model.observe(CounterSample(0, window_ns=10, l3_accesses=8, l3_misses=4, source="perf"))
    >>> model.level
    2.0
    """

    name: ClassVar[str] = "counters"
    observes: ClassVar[type[Observation]] = CounterSample

    def __init__(self, constant: float, per_miss_rate: float, per_access_per_ns: float) -> None:
        """The coefficients come from a fit against measured slowdowns; miss rate = misses / accesses, 0 … 1."""
        self.level = 1.0
        self._constant = constant
        self._per_miss_rate = per_miss_rate
        self._per_access_per_ns = per_access_per_ns

    @property
    def settings(self) -> dict[str, float]:
        return {
            "constant": self._constant,
            "per_miss_rate": self._per_miss_rate,
            "per_access_per_ns": self._per_access_per_ns,
        }

    def observe(self, observation: Observation) -> None:
        if not isinstance(observation, CounterSample) or observation.window_ns <= 0:
            return
        accesses, misses = observation.l3_accesses, observation.l3_misses
        miss_rate = misses / accesses if accesses else 0.0
        accesses_per_ns = accesses / observation.window_ns
        level = self._constant + self._per_miss_rate * miss_rate + self._per_access_per_ns * accesses_per_ns
        self.level = _clamp(level)


class ObservedSlowdown:
    """The paper's definition of the level itself, measured: finished blocks against their solo profile, smoothed.

    >>> observed = ObservedSlowdown(weight=0.5)
    >>> observed.observe(BlockTimed(elapsed_ns=30, solo_ns=10))
    >>> observed.level
    2.0
    """

    name: ClassVar[str] = "observed"
    observes: ClassVar[type[Observation]] = BlockTimed

    def __init__(self, weight: float = 0.2) -> None:
        """`weight` is the latest block's share in the moving average."""
        self.level = 1.0
        self._weight = weight

    @property
    def settings(self) -> dict[str, float]:
        return {"weight": self._weight}

    def observe(self, observation: Observation) -> None:
        if isinstance(observation, BlockTimed) and observation.solo_ns > 0:
            slowdown = observation.elapsed_ns / observation.solo_ns
            if not 1.0 <= slowdown <= HIGHEST_LEVEL:
                slowdown = _clamp(slowdown)
            self.level += self._weight * (slowdown - self.level)


class PredictedDemand:
    """The last resort, nothing measured: the factor by which the running blocks over-subscribe the memory.

    >>> predicted = PredictedDemand(memory_bytes_per_ns=100.0)
    >>> predicted.observe(DemandChanged(bytes_per_ns=150.0))
    >>> predicted.level
    1.5
    """

    name: ClassVar[str] = "demand"
    observes: ClassVar[type[Observation]] = DemandChanged

    def __init__(self, memory_bytes_per_ns: float) -> None:
        """The bandwidth that the whole machine reaches, in bytes per ns (= GB/s)."""
        self.level = 1.0
        self._memory_bytes_per_ns = memory_bytes_per_ns

    @property
    def settings(self) -> dict[str, float]:
        return {"memory_bytes_per_ns": self._memory_bytes_per_ns}

    def observe(self, observation: Observation) -> None:
        if isinstance(observation, DemandChanged):
            self.level = _clamp(observation.bytes_per_ns / self._memory_bytes_per_ns)


PROXIES: dict[str, Callable[..., InterferenceProxy]] = {
    "counters": CounterModel,
    "observed": ObservedSlowdown,
    "demand": PredictedDemand,
}


class SteadyLevel:
    """The level as an index into the grid, with hysteresis, so that noise does not flip the code versions.

    >>> steady = SteadyLevel((1.0, 2.0))
    >>> steady.follow(1.7), steady.follow(1.8), steady.follow(1.3)
    (0, 1, 1)
    """

    __slots__ = ("_grid", "_high", "_low", "index")

    _PAST_THE_MIDDLE = 0.25  # of the distance to the neighbour, on top of the half

    def __init__(self, grid: Sequence[float]) -> None:
        self._grid = grid
        self._settle(0)

    def follow(self, level: float) -> int:
        """Moves to the nearest index once the level is clearly past the middle between two; returns the index."""
        if not self._low <= level <= self._high:
            self._settle(nearest_level(self._grid, level))
        return self.index

    def _settle(self, index: int) -> None:
        """Stay at this index until the level leaves the range around it."""
        grid, reach = self._grid, 0.5 + self._PAST_THE_MIDDLE
        self.index = index
        self._low = grid[index] - reach * (grid[index] - grid[index - 1]) if index else -inf
        self._high = grid[index] + reach * (grid[index + 1] - grid[index]) if index + 1 < len(grid) else inf


def _clamp(level: float) -> float:
    return 1.0 if level < 1.0 else HIGHEST_LEVEL if level > HIGHEST_LEVEL else level
