"""Rounding of weights to bfloat16 so that the errors of a filter cancel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FILTERS_AT_ONCE = 64  # so that the arrays stay small


def round_filters(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Filters (OC, …) as floats that bfloat16 holds exactly; the sum of each filter changes by about one rounding step.

    Rounded to nearest, a filter's errors add up to a shift, which multiplies what all its inputs have in common, and
    the outputs of a ReLU have much in common. So weights are rounded the other way, those closest to the middle first,
    until their errors cancel. No error of a single weight grows by much, and SSD-300's bfloat16 weights cost a third
    of the error.

    >>> filters = np.full((1, 4), 1.003, np.float32)  # 1.0 each, to nearest
    >>> round_filters(filters).tolist()
    [[1.0078125, 1.0, 1.0, 1.0]]
    """
    rows = np.ascontiguousarray(weight, np.float32).reshape(len(weight), -1)
    found = np.empty_like(rows)
    for first in range(0, len(rows), FILTERS_AT_ONCE):
        found[first : first + FILTERS_AT_ONCE] = _round_rows(rows[first : first + FILTERS_AT_ONCE])
    return found.reshape(weight.shape)


def _round_rows(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = rows.view(np.uint32)
    down = bits & np.uint32(0xFFFF0000)  # towards zero
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    other = np.where(nearest == down, down + np.uint32(0x10000), down).view(np.float32)
    found = nearest.view(np.float32)
    error, change = found - rows, other - found  # exact
    total = error.sum(1, keepdims=True, dtype=np.float64)
    usable = (error != 0) & (np.sign(change) == -np.sign(total))
    loss = np.where(usable, np.abs(change) - 2 * np.abs(error), np.inf)  # squared error that a unit of change costs
    count = min(rows.shape[1], 16 + 4 * int(rows.shape[1] ** 0.5))  # the sum of errors grows with the root
    order = np.argpartition(loss, count - 1, axis=1)[:, :count]
    order = np.take_along_axis(order, np.argsort(np.take_along_axis(loss, order, 1), axis=1), 1)
    gain = np.where(np.take_along_axis(usable, order, 1), np.abs(np.take_along_axis(change, order, 1)), np.inf)
    turned = np.cumsum(gain, axis=1, dtype=np.float64) <= np.abs(total)
    values = np.where(turned, np.take_along_axis(other, order, 1), np.take_along_axis(found, order, 1))
    np.put_along_axis(found, order, values, 1)
    return found
