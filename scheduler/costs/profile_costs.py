"""A profile turned into tables that a decision can look up.

A table is one packed array for each level, with a row for each layer and a column for each core count, unless noted
otherwise. numpy builds the tables but does not hold them: a decision reads few numbers of many, and waits for the
memory, not for the arithmetic. A level is an index into a grid that all profiles of a scheduler share.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import add, sub

import numpy as np
from numpy.typing import NDArray

from veltair.scheduler.costs.layer_slopes import LayerSlopes
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_validation import validate_profile
from veltair.types import CodeVersion, ModelProfile

_NUMBER_BYTES = 4


class ProfileCosts:
    """What any range of layers of one profile takes, at every level of the grid and on every core count.

    ::

        costs = ProfileCosts(profile, level_grid([profile]), machine_cores=8)
        costs.time_ns(SOLO, cores=4, start=0, stop=costs.layers)  # the whole model alone on 4 cores

    The best version of a layer is the fastest at that level on that many cores (the first of equals). A machine
    with more cores than the profile measured is used up to the profile's count.
    """

    __slots__ = (
        "_alone_ns",
        "_layer_work",
        "_least_ns",
        "_longest_ns",
        "_most",
        "_most_within",
        "_prefix_ns",
        "_rest_ns",
        "_slopes",
        "_solo_ns",
        "_version",
        "bytes",
        "cores",
        "layers",
        "least_rest_ns",
        "profile",
        "rest_on_one_ns",
        "time_work",
        "work",
    )

    def __init__(
        self, profile: ModelProfile, grid: Sequence[float], machine_cores: int, *, split_by_ops: bool = False
    ) -> None:
        """`split_by_ops`: `work`, by which a model's target is split among its layers, is their operations, as in the
        paper (Alg. 1 l. 3), at least one for each number that a layer moves; else the time that they take.
        Raises ProfileError.
        """
        validate_profile(profile)
        self.profile = profile
        self.layers = len(profile.layers)
        self.cores = min(machine_cores, profile.cores)

        # (levels, layers, cores): the fastest version's time, and which one that is
        shape = (len(grid), self.layers, self.cores)
        best, which = np.empty(shape, np.int64), np.empty(shape, np.int64)
        for i, versions in enumerate(profile.versions):
            times = np.stack([_on_grid(version, grid, self.cores) for version in versions])
            which[:, i] = times.argmin(axis=0)
            best[:, i] = times.min(axis=0)

        solo = _solo(profile, self.cores)
        alone = np.stack([np.take_along_axis(solo, at[:, None], axis=1)[:, 0] for at in which])
        prefix = _sums(best)
        rest = np.minimum.accumulate(prefix[:, -1:] - prefix, axis=2)

        self._prefix_ns = _packed(prefix)  # layers 0 … l-1
        # the least times of layers 0 … l-1, each on at most that many cores; a row for each core count
        self._least_ns = _packed(_sums(np.minimum.accumulate(best, axis=2)).transpose(0, 2, 1))
        # the longest of layers l … end
        self._longest_ns = _packed(np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1])
        # layers l … end on at most that many cores, negated: rows ascend, so that they can be bisected
        self._rest_ns = _packed(-rest)
        # [level][layer]: layers l … end on the number of cores on which they are fastest, and on one
        self.least_rest_ns, self.rest_on_one_ns = _packed(rest[..., -1]), _packed(rest[..., 0])
        # [level][cores - 1][layer]
        self._version = [[tuple(row) for row in rows] for rows in which.transpose(0, 2, 1).tolist()]
        self._most = solo.shape[1]
        self._alone_ns = _packed(_sums(alone))  # the same versions as in _prefix_ns, alone
        self._solo_ns = _packed(solo.reshape(-1, self.cores).T)  # [cores - 1][layer * most versions + version]
        # what has been asked for
        self._slopes: dict[tuple[int, int, bool], LayerSlopes] = {}
        self._most_within: dict[tuple[int, int, float], int] = {}

        # As prefix sums. The time is that on one core, alone: on more, each layer would get just what it needs there.
        self.time_work: list[int] = prefix[SOLO, :, 0].tolist()
        ops = (max(layer.flops, layer.bytes // _NUMBER_BYTES, 1) for layer in profile.layers)
        self.work = _running_sum(ops) if split_by_ops else self.time_work
        self._layer_work = _differences(self.time_work), _differences(self.work)
        self.bytes = _running_sum(layer.bytes for layer in profile.layers)

    def time_ns(self, level: int, cores: int, start: int, stop: int) -> int:
        """The time of layers [start, stop), each in its best version."""
        sums, columns = self._prefix_ns[level], self.cores
        return sums[stop * columns + cores - 1] - sums[start * columns + cores - 1]

    def longest_layer_ns(self, level: int, cores: int, start: int) -> int:
        """The time of the longest of layers [start, end), in its best version."""
        return self._longest_ns[level][start * self.cores + cores - 1]

    def alone_ns(self, level: int, cores: int, start: int, stop: int) -> int:
        """The time of layers [start, stop) alone on the machine, each in its best version for that level."""
        sums, columns = self._alone_ns[level], self.cores
        return sums[stop * columns + cores - 1] - sums[start * columns + cores - 1]

    def solo_ns(self, versions: Sequence[int], first: int, start: int, stop: int, cores: int) -> int:
        """The time of layers [start, stop) alone on the machine in these versions; `versions[0]` is layer `first`'s."""
        times, most = self._solo_ns[cores - 1], self._most
        rows = range(start * most, stop * most, most)
        return sum(map(times.__getitem__, map(add, rows, versions[start - first : stop - first])))

    def versions(self, level: int, cores: int, start: int, stop: int) -> tuple[int, ...]:
        return self._version[level][cores - 1][start:stop]

    def cores_for_rest(self, level: int, start: int, qos_ns: int) -> int:
        """Core@ModelGranularity: the fewest cores that run layers [start, end) within `qos_ns`, else all."""
        columns = self.cores
        row = start * columns
        fewer = bisect_left(self._rest_ns[level], -qos_ns, row, row + columns) - row
        return fewer + 1 if fewer < columns else columns

    def cores_to_end(self, level: int, start: int, left_ns: int) -> int | None:
        """The fewest cores that run layers [start, end) within `left_ns`; None if no number of cores is enough."""
        row = start * self.cores
        index = bisect_left(self._rest_ns[level], -left_ns, row, row + self.cores) - row
        return index + 1 if index < self.cores else None

    def layer_at(self, level: int, cores: int, start: int, stop: int, left_ns: int, of_ns: int) -> int:
        """The last of layers [start, stop) to begin by the time that `left_ns` of the `of_ns` they take are left."""
        begins_ns = self._prefix_ns[level][cores - 1 :: self.cores]
        ends_ns = begins_ns[stop]
        reached_ns = ends_ns - (ends_ns - begins_ns[start]) * left_ns // of_ns
        return bisect_right(begins_ns, reached_ns, start + 1, stop) - 1

    def least_cores(self, level: int, start: int, stop: int, qos_ns: int, bound: int) -> int | None:
        """The fewest cores that run layers [start, stop) within `qos_ns`; None if more than `bound` are needed."""
        if stop == self.layers:
            cores = self.cores_to_end(level, start, qos_ns)
            return cores if cores is not None and cores <= bound else None
        least, row = self._least_ns[level], (bound - 1) * (self.layers + 1)
        if least[row + stop] - least[row + start] > qos_ns:  # not even with the count that is best for each layer
            return None
        for cores, time_ns in enumerate(self._times_ns(level, start, stop, bound), 1):  # they do not always fall
            if time_ns <= qos_ns:
                return cores
        return None

    def slopes(self, level: int, cores: int, work: Sequence[int]) -> LayerSlopes:
        """The slopes of the layers, each on at most that many cores. `work`: this model's `work` or `time_work`."""
        key = level, cores, work is self.work
        known = self._slopes.get(key)
        if known is None:
            row = (cores - 1) * (self.layers + 1)
            least = self._least_ns[level][row : row + self.layers + 1]
            known = self._slopes[key] = LayerSlopes(_differences(least), self._layer_work[work is self.work])
        return known

    def cores_for(self, level: int, start: int, stop: int, qos_ns: int) -> tuple[int, bool]:
        """The fewest cores that run layers [start, stop) within `qos_ns`, or the fastest count where none do; and
        whether they do."""
        cores = self.least_cores(level, start, stop, qos_ns, self.cores)
        return (self.fastest_cores(level, start, stop, self.cores), False) if cores is None else (cores, True)

    def fastest_cores(self, level: int, start: int, stop: int, bound: int) -> int:
        """The core count up to `bound` on which layers [start, stop) are fastest; the least of equals."""
        if stop == self.layers:
            least, row = self._rest_ns[level], start * self.cores
            return bisect_left(least, least[row + bound - 1], row, row + bound) - row + 1
        times = list(self._times_ns(level, start, stop, bound))
        return times.index(min(times)) + 1

    def most_cores_within(self, level: int, start: int, factor: float) -> int:
        """The most cores that run layers [start, end) for at most `factor` times the core time of one."""
        key = level, start, factor
        cores = self._most_within.get(key)
        if cores is None:
            most_ns, cores = factor * self.time_ns(level, 1, start, self.layers), self.cores
            while cores > 1 and cores * self.time_ns(level, cores, start, self.layers) > most_ns:
                cores -= 1
            self._most_within[key] = cores
        return cores

    def _times_ns(self, level: int, start: int, stop: int, bound: int) -> Iterator[int]:
        """The times of layers [start, stop) on 1 … bound cores."""
        sums, begin, end = self._prefix_ns[level], start * self.cores, stop * self.cores
        return map(sub, sums[end : end + bound], sums[begin : begin + bound])


def _on_grid(version: CodeVersion, grid: Sequence[float], cores: int) -> NDArray[np.int64]:
    """`LatencyTable.at` for every level of the grid at once; (levels, cores)."""
    levels = np.asarray(version.latency.levels)
    measured: NDArray[np.float64] = np.array([row[:cores] for row in version.latency.latency_ns], np.float64)
    if len(levels) == 1:
        return np.tile(measured, (len(grid), 1)).astype(np.int64)
    wanted = np.clip(np.asarray(grid), levels[0], levels[-1])
    above = np.clip(np.searchsorted(levels, wanted), 1, len(levels) - 1)
    low, high = levels[above - 1], levels[above]
    share = ((wanted - low) / (high - low))[:, None]
    between = measured[above - 1] + share * (measured[above] - measured[above - 1])
    rounded: NDArray[np.int64] = np.rint(between).astype(np.int64)
    return rounded


def _packed(table: NDArray[np.int64]) -> list[array[int]]:
    """An array for each index of the first axis."""
    return [array("q", part.tobytes()) for part in table]


def _solo(profile: ModelProfile, cores: int) -> NDArray[np.int64]:
    """(layers, versions, cores): times alone, 0 where a layer has fewer versions."""
    times = np.zeros((len(profile.layers), max(map(len, profile.versions)), cores), np.int64)
    for i, versions in enumerate(profile.versions):
        for j, version in enumerate(versions):
            times[i, j] = version.latency.latency_ns[0][:cores]
    return times


def _sums(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """(levels, layers, cores) -> (levels, layers + 1, cores): the sums over the layers before."""
    sums = np.zeros((times.shape[0], times.shape[1] + 1, times.shape[2]), np.int64)
    np.cumsum(times, axis=1, out=sums[:, 1:])
    return sums


def _differences(sums: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(sums)]


def _running_sum(values: Iterable[int]) -> list[int]:
    sums = [0]
    for value in values:
        sums.append(sums[-1] + value)
    return sums
