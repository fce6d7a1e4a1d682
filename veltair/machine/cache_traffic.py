"""What a layer's code moves between a cache and the memory below, by how much of that cache it can keep.

Code is a nest of loops. Whatever one pass of a loop touches is fetched again by the next pass, unless the cache
holds it: so each loop level has a need (its working set) and a traffic (what still moves once the need is met), and
less cache means the traffic of an inner level. This is where code versions differ: large blocks move little while
they have the cache to themselves and much when they share it; small blocks hardly notice (VELTAIR sec. 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LoopLevel:
    """What one pass of a loop wants to keep, and what all passes move when they can."""

    task_bytes: int  # of each core that works on the layer
    shared_bytes: int  # once, however many cores there are
    traffic_bytes: int  # of the whole layer

    def need(self, cores: int) -> int:
        """Bytes of one cache that `cores` cores share."""
        return self.shared_bytes + cores * self.task_bytes


# From the innermost level (least need, most traffic) to the whole layer (greatest need, compulsory traffic).
Reuse: TypeAlias = Sequence[LoopLevel]


def traffic_bytes(reuse: Reuse, cores: int, cache_bytes: float) -> float:
    """Bytes that pass below a cache of which the layer, on `cores` cores, keeps `cache_bytes`.

    Between two levels' needs the part that fits is kept and the rest moves, as under random replacement; the
    innermost level's traffic is the most. Raises ValueError for a reuse without levels.
    """
    if not reuse:
        raise ValueError("reuse: expected at least one loop level")
    inner = reuse[0]
    for level in reuse:
        low, high = inner.need(cores), level.need(cores)
        if cache_bytes < high:
            held = (cache_bytes - low) / (high - low) if high > low else 0.0
            return inner.traffic_bytes + max(held, 0.0) * (level.traffic_bytes - inner.traffic_bytes)
        inner = level
    return float(inner.traffic_bytes)
