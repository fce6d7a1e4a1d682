"""Bytes that a layer's code moves between a cache and the memory below, by its share of that cache.

Code is a nest of loops. What one pass of a loop touches is fetched again by the next pass unless the cache holds it. So
each loop level has a working set and a traffic (the bytes that still move once the cache holds the working set), and
a smaller share of the cache means the traffic of an inner level. Here code versions differ: large blocks move little
while they have the cache to themselves and much when they share it; small blocks hardly notice (VELTAIR sec. 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LoopLevel:
    """The working set of one pass of a loop, and the traffic of all passes when a cache holds it.

    >>> LoopLevel(task_bytes=4096, shared_bytes=512, traffic_bytes=60_000).working_set_bytes(cores=2)
    8704
    """

    task_bytes: int  # working set of each core that works on the layer
    shared_bytes: int  # working set that all cores share
    traffic_bytes: int  # of the whole layer

    def working_set_bytes(self, cores: int) -> int:
        """Bytes in a cache that `cores` cores share."""
        return self.shared_bytes + cores * self.task_bytes


# From the innermost level (smallest working set, most traffic) to the whole layer (largest, compulsory traffic).
Reuse: TypeAlias = Sequence[LoopLevel]


def traffic_bytes(reuse: Reuse, cores: int, cache_bytes: float) -> float:
    """Bytes that pass below a cache of which a layer on `cores` cores has `cache_bytes`.

    Between the working sets of two levels the part that fits is held and the rest moves, as under random replacement;
    the traffic of the innermost level is the maximum. Raises ValueError for a reuse without levels.

    >>> nest = [LoopLevel(64, 0, 1000), LoopLevel(4096, 0, 100)]
    >>> traffic_bytes(nest, 1, 2080), traffic_bytes(nest, 1, 1 << 20)
    (550.0, 100.0)
    """
    if not reuse:
        raise ValueError("reuse: expected at least one loop level")
    inner = reuse[0]
    for level in reuse:
        low, high = inner.working_set_bytes(cores), level.working_set_bytes(cores)
        if cache_bytes < high:
            held = (cache_bytes - low) / (high - low) if high > low else 0.0
            return inner.traffic_bytes + max(held, 0.0) * (level.traffic_bytes - inner.traffic_bytes)
        inner = level
    return float(inner.traffic_bytes)
