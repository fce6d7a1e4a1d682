"""Which taps of a filter each share of the channels reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from veltair.compiler.graph.parameters.vision import window_share
from veltair.compiler.kernels.conv.conv_weights import in_windows
from veltair.compiler.patterns.vision.tap_windows import MOST_LIVE, tap_windows

LANES = 16
live = st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda extents: arrays.arrays(np.bool_, extents)
)


@given(live)
def test_no_tap_that_is_read_is_left_out(blocks: NDArray[np.bool_]) -> None:
    """What lies in the windows, put where it was, is the filter."""
    weight = np.repeat(blocks, LANES, axis=0)[:, None].astype(np.float32)
    weight *= np.arange(1, weight.size + 1).reshape(weight.shape)
    windows = tap_windows(weight, LANES)
    if not windows:
        return
    assert window_share(windows, weight.shape[2:]) < MOST_LIVE
    restored = np.zeros_like(weight)
    for part, kept, (row, column, rows, columns) in zip(
        np.split(restored, len(windows)), np.split(in_windows(weight, windows), len(windows)), windows, strict=True
    ):
        part[:, :, row : row + rows, column : column + columns] = kept[:, :, :rows, :columns]
        assert not kept[:, :, rows:].any() and not kept[..., columns:].any()
    np.testing.assert_array_equal(restored, weight)


def test_the_phases_of_a_transposed_convolution() -> None:
    """Of 4 x 4 taps with a stride of 2: every phase reads 2 x 2 of 3 x 3."""
    weight = np.zeros((4, 32, 8, 3, 3), np.float32)
    for phase in range(4):
        row, column = divmod(phase, 2)
        weight[phase, :, :, row : row + 2, column : column + 2] = 1
    assert tap_windows(weight.reshape(128, 8, 3, 3), LANES) == ((0, 0, 2, 2), (0, 1, 2, 2), (1, 0, 2, 2), (1, 1, 2, 2))


def test_taps_that_no_channel_reads() -> None:
    assert tap_windows(np.pad(np.ones((64, 4, 1, 3)), ((0, 0), (0, 0), (1, 0), (0, 0))), LANES) == ((1, 0, 1, 3),)


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(np.ones((64, 4, 3, 3)), id="every tap"),
        pytest.param(np.pad(np.ones((8, 4, 1, 1)), ((0, 16), (0, 0), (0, 2), (0, 2))), id="channels are not whole"),
        pytest.param(np.ones((64, 4, 1, 1)), id="pointwise"),
    ],
)
def test_nothing_to_leave_out(weight: NDArray[np.float64]) -> None:
    assert tap_windows(weight, LANES) == ()
