"""TensorFlow's Bucketize, as tf2onnx leaves it in an ONNX file, becomes a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from features.column_nets import CITIES, INT, model, node
from onnx import TensorProto

from veltair.compiler.features.feature_model import join_features
from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

VALUES = np.array([-3.0, -0.5, 0.0, 0.25, 1.0, 1e9, np.nan, -np.inf], np.float32)
BUCKETS = [0, 1, 2, 2, 4, 4, 4, 0]  # std::upper_bound among -0.5, 0, 1, 1


def nodes(boundaries: list[float]) -> list[Any]:
    return [
        node("Bucketize", ["x"], "bucket", boundaries=boundaries),
        node("Cast", ["bucket"], "id", to=INT),
        node("Gather", ["cities", "id"], "rows"),
        node("Flatten", ["rows"], "flat.rows"),
        node("Relu", ["flat.rows"], "y"),
    ]


def test_a_number_gets_the_row_of_its_bucket(tmp_path: Path) -> None:
    inputs = {"x": (TensorProto.FLOAT, ["B", 1])}
    path = model(tmp_path / "m.onnx", nodes([-0.5, 0.0, 1.0, 1.0]), inputs, ["y"])
    front = join_features(load_model(path, 8), None)
    assert front is not None
    (given,) = reference_inputs(front.description, {"x": VALUES}, front.tables).values()
    np.testing.assert_array_equal(given, CITIES[BUCKETS])


def test_operators_may_join_what_they_made_of_the_bucket(tmp_path: Path) -> None:
    """As Keras' Embedding does, which counts negative ids from the end."""
    steps = [
        node("Bucketize", ["x"], "bucket", boundaries=[-0.5, 0.0, 1.0, 1.0]),
        node("Cast", ["bucket"], "whole", to=INT),
        node("Greater", ["whole", "two"], "large"),
        node("Cast", ["large"], "factor", to=INT),
        node("Mul", ["whole", "factor"], "id"),
        *nodes([0.0])[2:],
    ]
    path = model(tmp_path / "m.onnx", steps, {"x": (TensorProto.FLOAT, ["B", 1])}, ["y"])
    front = join_features(load_model(path, 8), None)
    assert front is not None
    (given,) = reference_inputs(front.description, {"x": VALUES}, front.tables).values()
    np.testing.assert_array_equal(given, CITIES[[bucket if bucket > 2 else 0 for bucket in BUCKETS]])


@pytest.mark.parametrize("boundaries", [[1.0, 0.0], [0.0, float("inf")]])
def test_boundaries_that_are_none_are_refused(boundaries: list[float], tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", nodes(boundaries), {"x": (TensorProto.FLOAT, ["B", 1])}, ["y"])
    with pytest.raises(ModelError, match="operator Bucketize: expected boundaries"):
        load_model(path, 8)
