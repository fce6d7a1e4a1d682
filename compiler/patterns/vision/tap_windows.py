"""Which taps of a filter are other than zero, where that differs between channels.

The phases of a transposed convolution (`transposed.py`) read a window of the taps each: with a filter of 4 x 4 and a
stride of 2, every phase 2 x 2 of 3 x 3. Their channels lie side by side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.parameters.vision import Windows, window_share

MOST_SHARES = 64
MOST_LIVE = 0.8  # of the taps; where more are other than zero, leaving some out gains nothing


def tap_windows(weight: NDArray[Any], lanes: int) -> Windows:
    """A window for each of the fewest equal shares of filters (OC, IC, KH, KW) that leave the most taps out.

    Empty where there is nothing to leave out. lanes: channels that cannot be parted.

    >>> filters = np.zeros((32, 1, 1, 3))
    >>> filters[:16, :, :, 1:], filters[16:, :, :, 0] = 1, 1
    >>> tap_windows(filters, 16)
    ((0, 1, 1, 2), (0, 0, 1, 1))
    """
    channels, _, rows, columns = weight.shape
    if channels % lanes or rows * columns == 1:
        return ()
    live = np.any(weight != 0, axis=1).reshape(-1, lanes, rows, columns).any(1)
    found: Windows = ()
    least = MOST_LIVE
    for shares in (n for n in range(1, min(len(live), MOST_SHARES) + 1) if len(live) % n == 0):
        windows = tuple(_window(np.any(taps, axis=0)) for taps in np.split(live, shares))
        share = window_share(windows, (rows, columns))
        if share < least:
            found, least = windows, share
    return found


def _window(live: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    """First row and column, and extents, of what holds all live taps; of one tap where there is none."""
    rows, columns = np.flatnonzero(live.any(1)), np.flatnonzero(live.any(0))
    if not rows.size:
        return 0, 0, 1, 1
    return int(rows[0]), int(columns[0]), int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1
