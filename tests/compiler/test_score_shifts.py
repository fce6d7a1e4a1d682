"""A position bias that is counted from the last position pads where a softmax takes away what the extent adds to it."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest
from onnx import TensorProto
from open_dimensions import LONGEST, causal_text, check_padding, node, plan_bounds, saved

SEEN = node("LessOrEqual", ["column", "row"], ["seen"])
FROM_THE_END = [
    SEEN,
    node("Sub", ["column", "length"], ["back"]),
    node("Cast", ["back"], ["bias"], to=TensorProto.FLOAT),
]
BIASED = node("Add", ["scores", "bias"], ["biased"])
MASKED = node("Where", ["seen", "biased", "least"], ["kept"])
PADDED = {
    "a bias by heads, as of MPT": causal_text([*FROM_THE_END, BIASED, MASKED]),
    "two of them": causal_text(
        [
            *FROM_THE_END,
            BIASED,
            node("Add", ["bias", "biased"], ["b"]),
            node("Where", ["seen", "b", "infinite"], ["kept"]),
        ]
    ),
    "ids from the first position, counted from the end": causal_text(
        pool=[
            node("Neg", ["lengths"], ["from"]),
            node("Slice", ["tokens", "from", "large", "second"], ["y"]),
        ]
    ),
}
SHOWS = {
    "a mask that the bias may outdo": causal_text(
        [*FROM_THE_END, BIASED, node("Where", ["seen", "biased", "low"], ["kept"])]
    ),
    "a bias that is multiplied": causal_text([*FROM_THE_END, node("Mul", ["scores", "bias"], ["biased"]), MASKED]),
    "a bias that grows with the extent": causal_text(
        [
            *FROM_THE_END,
            node("Mul", ["bias", "bias"], ["far"]),
            node("Add", ["scores", "far"], ["biased"]),
            MASKED,
        ]
    ),
    "a bias without a softmax": causal_text(
        [*FROM_THE_END, BIASED, node("Where", ["seen", "biased", "nothing"], ["weights"])]
    ),
    "a softmax over the queries": causal_text([*FROM_THE_END, BIASED, MASKED], axis=1),
    "all but the first position": causal_text(
        pool=[
            node("Neg", ["lengths"], ["from"]),
            node("Add", ["from", "second"], ["begins"]),
            node("Slice", ["tokens", "begins", "large", "second"], ["a"]),
            node("Slice", ["tokens", "none", "second", "second"], ["b"]),
            node("Concat", ["a", "b"], ["y"], axis=1),
        ]
    ),
}


@pytest.mark.parametrize("name", PADDED)
def test_what_the_extent_adds_to_all_scores_does_not_show(name: str, tmp_path: Path) -> None:
    check_padding(saved(PADDED[name], tmp_path))


@pytest.mark.parametrize("name", SHOWS)
def test_what_sees_the_extent_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    path = saved(SHOWS[name], tmp_path)
    ort.InferenceSession(str(path))
    found = plan_bounds(path, "seq", 1, LONGEST).dimension
    assert found.exact and found.reason
