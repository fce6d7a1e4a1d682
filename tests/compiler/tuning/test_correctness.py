"""What counts as an error of a layer's output: values that stand for infinity neither fail nor hide others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from stitch.region_case import Case, assert_right

from veltair.compiler.tuning import correctness
from veltair.compiler.tuning.correctness import largest_errors

LOWEST = float(np.finfo(np.float32).min)
INF, NAN = float("inf"), float("nan")
FLOATS = st.sampled_from([INF, -INF, NAN, LOWEST, LOWEST / 2]) | st.floats(width=32)


@pytest.mark.parametrize(
    ("found", "expected", "relative"),
    [
        ([], [], 0),
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, -INF], [1.0, -INF], 0),
        ([1.0, INF], [1.0, -INF], INF),
        ([NAN, 1.0], [NAN, 1.0], 0),
        ([NAN, 1.0], [1.0, 1.0], INF),
        ([1.0, 1.0], [NAN, 1.0], INF),
        ([LOWEST, 1.0], [-INF, 1.0], INF),
        ([LOWEST, 1.0], [LOWEST, 1.0], 0),
        ([LOWEST / 2, 1.0], [LOWEST, 1.0], 0.5),
        ([LOWEST, 1.5], [LOWEST, 1.0], 0.5),  # not hidden by the mask
        ([0.0, 1.0], [LOWEST, 1.0], 1),
        ([LOWEST, LOWEST], [LOWEST, LOWEST], 0),
        ([1e-12], [0.0], 1e18),
    ],
)
def test_relative_errors(found: list[float], expected: list[float], relative: float) -> None:
    _, error = largest_errors(np.array(found, np.float32), np.array(expected, np.float32))
    assert error == pytest.approx(relative)


@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=9), st.integers(1, 4))
def test_the_parts_that_are_compared_change_nothing(pairs: list[tuple[float, float]], size: int) -> None:
    found, expected = (np.array([pair[side] for pair in pairs], np.float32) for side in (0, 1))
    whole = largest_errors(found, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(correctness, "PART", size)
        assert largest_errors(found, expected) == whole


@pytest.mark.parametrize("low", [-INF, LOWEST])
def test_a_softmax_behind_a_mask(low: float) -> None:
    """Of scores that are selected, or that a large number is added to; a row without any key is even, or NaN."""
    nodes = [
        helper.make_node("Where", ["keep", "x", "low"], ["chosen"]),
        helper.make_node("Softmax", ["chosen"], ["p"], axis=-1),
        helper.make_node("Where", ["keep", "nought", "low"], ["mask"]),
        helper.make_node("Add", ["x", "mask"], ["sum"]),
        helper.make_node("Softmax", ["sum"], ["q"], axis=-1),
    ]
    constants = {"low": np.array(low, np.float32), "nought": np.array(0, np.float32)}
    shapes = {"x": (-1, 2, 5, 33), "keep": (-1, 1, 5, 33)}
    case = Case(nodes, shapes, ["p", "q", "mask"], constants, {"keep": "bool"})
    layers = assert_right(case, batch=3, max_batch=3).layers
    assert {layer.op for layer in layers} == {"stitched"}
