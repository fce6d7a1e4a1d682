"""Memory for the operands of one request after the other: to map it and fault its pages in again costs more than to run
most kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.profiles.artifact.manifest import ALIGNMENT, SLACK_BYTES

MOST_BYTES = 1 << 30  # what a request takes beyond this is not kept

Allocate = Callable[[Sequence[int], str], NDArray[Any]]  # zeroed arrays, aligned, with slack behind them


class OperandMemory:
    """Arrays, each aligned and with slack behind it, that last until the next `begin`.

    >>> memory = OperandMemory(lambda shape, dtype: np.zeros(shape, dtype))
    >>> memory.begin()
    >>> memory.zeros((2, 3), "float32").shape
    (2, 3)
    """

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._kept: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0  # bytes that the present request has asked for

    def begin(self) -> None:
        """Begin a request: the arrays of the one before are not used any more."""
        wanted = min(self._used, MOST_BYTES)
        if wanted > len(self._kept):
            self._kept = np.empty(0, np.uint8)  # first, so that there are never both
            self._kept = self._allocate((wanted,), "uint8")
        self._used = 0

    def zeros(self, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """An array of zeros, written, so that no run pays for faults."""
        array = self.unset(shape, dtype)
        array.fill(0)
        return array

    def unset(self, shape: Sequence[int], dtype: str) -> NDArray[Any]:
        """An array whose contents may be anything."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        start = self._used
        self._used = -(-(start + size + SLACK_BYTES) // ALIGNMENT) * ALIGNMENT
        if self._used > len(self._kept):
            return self._allocate(shape, dtype)
        part = self._kept[start : start + size]
        return part.view(dtype).reshape(shape)
