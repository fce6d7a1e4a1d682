"""Filters without the taps that read nothing but padding.

Dilated filters are made for large images, and the last convolutions of a detector read a single pixel: of 3 x 3 taps
that lie 36 pixels apart on an image of 28 x 28, the middle one alone meets the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

Pads = tuple[int, int, int, int]  # top, left, bottom, right


def live_taps(
    weight: NDArray[Any],
    extents: Sequence[int],
    outputs: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Pads,
) -> tuple[NDArray[Any], tuple[int, int], Pads]:
    """The filters (OC, IC, KH, KW) without the outer rows and columns of taps that meet no input; dilations, padding.

    extents, outputs: heights and widths of the input and the output, which stays as it is.
    """
    kept, left = list[slice](), list[int]()
    for axis in (0, 1):
        size, pad, after, step = weight.shape[2 + axis], pads[axis], pads[2 + axis], dilations[axis]
        first = [tap * step - pad for tap in range(size)]  # where each tap reads for the first output
        span = (outputs[axis] - 1) * strides[axis]
        live = [tap for tap, at in enumerate(first) if at < extents[axis] and at + span >= 0]
        # What is left out has to be padding: a filter begins and ends within it.
        before = min(live[0], pad // step) if live else 0
        behind = min(size - 1 - live[-1], after // step) if live else 0
        kept.append(slice(before, size - behind))
        left += [pad - before * step, after - behind * step]
    found = weight[:, :, kept[0], kept[1]]
    steps = [step if size > 1 else 1 for step, size in zip(dilations, found.shape[2:], strict=True)]
    return found, (steps[0], steps[1]), (left[0], left[2], left[1], left[3])
