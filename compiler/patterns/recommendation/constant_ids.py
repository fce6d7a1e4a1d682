"""Ids of rows that are constants of the model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import ModelError

MOST_ROWS = (1 << 31) - 1  # kernels read ids of 32 bits


def checked_ids(ids: NDArray[Any], rows: int, node: str, expected: str, found: str) -> NDArray[np.int32]:
    """The ids as numbers from 0 on; ONNX counts negative ones from the end.

    Raises ModelError for one of no row: `node` has indices of `expected`, and `found` goes before the wrong one.

    >>> checked_ids(np.array([0, -1]), 5, "g", "5 rows", "found").tolist()
    [0, 4]
    """
    counted = np.where(ids < 0, ids + rows, ids)
    if rows > MOST_ROWS or counted.min() < 0 or counted.max() >= rows:
        wrong = int(ids[np.argmax((counted < 0) | (counted >= rows))])
        raise ModelError(f"node {node!r}: expected indices of {expected}, {found} {wrong}")
    return counted.astype(np.int32)
