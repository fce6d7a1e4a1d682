"""The batch sizes that a model is timed at."""

from __future__ import annotations

import numpy as np

MAX_SIZES = 5


def batch_sizes(max_batch: int, limit: int = MAX_SIZES) -> tuple[int, ...]:
    """Powers of two from 1 on, and max_batch itself: at most `limit` sizes, evenly spread.

    >>> batch_sizes(32), batch_sizes(6)
    ((1, 2, 4, 16, 32), (1, 2, 4, 6))
    """
    powers = [1]
    while powers[-1] * 2 < max_batch:
        powers.append(powers[-1] * 2)
    sizes = [*powers, max_batch] if max_batch > 1 else powers
    if len(sizes) <= limit:
        return tuple(sizes)
    return tuple(sizes[i] for i in np.linspace(0, len(sizes) - 1, limit).round().astype(int))
