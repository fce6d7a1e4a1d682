"""The grid of interference levels that all profiles of a scheduler share; a level is an index into it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

from veltair.types import ModelProfile

SOLO = 0  # the grid's first level is 1.0: running alone
_FINEST_RATIO = 1.15  # neighbouring levels of the grid lie no further apart than this


def level_grid(profiles: Iterable[ModelProfile]) -> tuple[float, ...]:
    """All measured interference levels, ascending from 1.0, with the wide gaps subdivided."""
    measured = {1.0}
    for profile in profiles:
        for versions in profile.versions:
            measured.update(level for version in versions for level in version.latency.levels)
    ascending = sorted(measured)
    grid = ascending[:1]
    for low, high in pairwise(ascending):
        parts = 1
        while high > low * _FINEST_RATIO**parts:
            parts += 1
        grid += [round(low * (high / low) ** (i / parts), 6) for i in range(1, parts)] + [high]
    return tuple(grid)


def nearest_level(grid: Sequence[float], level: float) -> int:
    """Index of the grid's level nearest to this one; the lower of two equally near."""
    above = bisect_left(grid, level)
    if above == 0:
        return 0
    if above == len(grid):
        return above - 1
    return above if grid[above] - level < level - grid[above - 1] else above - 1
