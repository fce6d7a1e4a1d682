"""Crosses of inputs, of intervals, of places of keys and of several values a row, as TensorFlow's `SparseCross`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from features.checked_columns import TEXTS, check, columns_of
from features.column_nets import CITIES, CONSTANTS, CONTRIB, INT, STRING, encoder, model, node

from veltair.compiler.features.fingerprint import crossed_fingerprint
from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

FLOAT = onnx.TensorProto.FLOAT
KEY = 956888297470
CONSTANTS |= {"empty": np.array([""], object), "start": np.array([0]), "width": np.array([4])}
CONSTANTS["by row"] = np.array([-1, 6, 4])
NUMBERS = np.array([[-1.0], [0.0], [np.nan], [7.5]], np.float32)


def cross(given: list[str], buckets: int, **more: int) -> list[onnx.NodeProto]:
    outs = ["places", "buckets", "shape"]
    whole = {"N": 0, "hashed_output": 1, "num_buckets": buckets, "hash_key": KEY, **more}
    return [node("SparseCross", given, outs, **whole), node("Gather", ["cities", "buckets"], "y")]


def rows_of(values: list[list[Any]]) -> np.ndarray[Any, Any]:
    """Of each row's values: the row of the table for them."""
    return CITIES[[crossed_fingerprint(KEY, row) % 5 for row in values]]


def intervals() -> list[onnx.NodeProto]:
    return [
        node("Bucketize", ["n"], "interval", boundaries=[0.0, 5.0]),
        node("Cast", ["interval"], "wide", to=onnx.TensorProto.INT64),
    ]


def test_a_cross_is_a_hash_of_several_features(tmp_path: Path) -> None:
    """Buckets are TensorFlow's (tf.sparse.cross_hashed of 2.21)."""
    feeds = {
        "a": np.array([[b"x"], [b""], [b"Rome"], ["ü".encode()]], object),
        "b": np.array([[1], [-1], [2**40], [0]]),
    }
    path = model(tmp_path / "m.onnx", cross(["a", "b"], 5), {"a": (STRING, ["B", 1]), "b": (INT, ["B", 1])}, ["y"])
    loaded = check(path, tmp_path, feeds, CITIES[[2, 4, 4, 0]])
    assert columns_of(loaded)["a"].cross == ("b",) and not loaded.nodes[1:]


def test_intervals_of_a_number_are_crossed_with_texts_and_keys(tmp_path: Path) -> None:
    """NaN is in the last interval; unknown keys are 0."""
    nodes = [*intervals(), encoder("b", "key", ["x", "Rome"], [3, -9], 0), *cross(["wide", "b", "key"], 5)]
    texts = [b"x", b"", b"Rome", b"y" * 80]
    keys = [3, 0, -9, 0]
    path = model(tmp_path / "m.onnx", nodes, {"n": (FLOAT, ["B", 1]), "b": (STRING, ["B", 1])}, ["y"])
    want = rows_of([[place, *pair] for place, pair in zip([0, 1, 2, 2], zip(texts, keys, strict=True), strict=True)])
    loaded = check(path, tmp_path, {"n": NUMBERS, "b": np.array(texts, object)[:, None]}, want)
    assert len(columns_of(loaded)["n"].crossed) == 3


def test_a_number_that_is_crossed_may_be_read_as_it_is_too(tmp_path: Path) -> None:
    nodes = [*intervals(), *cross(["wide", "b"], 5)[:1], node("Gather", ["cities", "buckets"], "rows")]
    nodes += [node("Concat", ["rows", "n"], "y", axis=1)]
    numbers = np.array([[-1.0], [0.0], [4.0], [7.5]], np.float32)
    path = model(tmp_path / "m.onnx", nodes, {"n": (FLOAT, ["B", 1]), "b": (INT, ["B", 1])}, ["y"])
    want = np.concatenate([rows_of([[0, 7], [1, -1], [1, 2**40], [2, 0]]), numbers], 1)
    check(path, tmp_path, {"n": numbers, "b": np.array([[7], [-1], [2**40], [0]])}, want)


def test_a_value_that_a_sparse_tensor_leaves_out_crosses_with_nothing(tmp_path: Path) -> None:
    nodes = [
        node("StringEqual", ["a", "empty"], "no.a", domain=CONTRIB),
        node("Not", ["no.a"], "there"),
        node("NonZero", ["there"], "at"),
        node("Transpose", ["at"], "indices"),
        encoder("a", "keys", ["Rome", "Oslo"], [3, 1], -1),
        node("GatherND", ["keys", "indices"], "values"),
        node("Shape", ["a"], "extent"),
        node(
            "SparseCross",
            ["indices", "values", "extent", "b"],
            ["places", "buckets", "shape"],
            N=1,
            hashed_output=1,
            num_buckets=5,
            hash_key=KEY,
        ),
        node("Gather", ["cities", "buckets"], "rows"),
        node("Slice", ["places", "start", "one", "one"], "lines"),
        node("Shape", ["a"], "batch", end=1),
        node("Concat", ["batch", "width"], "size", axis=0),
        node("ConstantOfShape", ["size"], "zeros"),
        node("ScatterND", ["zeros", "lines", "rows"], "y", reduction="add"),
    ]
    inputs = {"a": (STRING, ["B", 1]), "b": (INT, ["B", 1])}
    feeds = {"a": np.array([[b"Rome"], [b""], [b"x"], [b"Oslo"]], object), "b": np.array([[7], [8], [-1], [2**40]])}
    want = rows_of([[3, 7], [0, 8], [-1, -1], [1, 2**40]])
    want[1] = 0
    check(model(tmp_path / "m.onnx", nodes, inputs, ["y"]), tmp_path, feeds, want)


def test_all_pairs_of_several_values_are_crossed(tmp_path: Path) -> None:
    nodes = [
        node(
            "SparseCross", ["a", "b"], ["places", "buckets", "shape"], N=0, hashed_output=1, num_buckets=5, hash_key=KEY
        ),
        node("Gather", ["cities", "buckets"], "pairs"),
        node("Reshape", ["pairs", "by row"], "rows"),
        node("ReduceSum", ["rows", "one"], "y", keepdims=0),
    ]
    ids = np.array([[1, -1], [0, 0], [2**40, 3], [-(2**63), 2**63 - 1]])
    want = np.stack(
        [rows_of([list(p) for p in product(a, b)]).sum(0) for a, b in zip(TEXTS, ids.tolist(), strict=True)]
    )
    inputs = {"a": (STRING, ["B", 3]), "b": (INT, ["B", 2])}
    loaded = check(
        model(tmp_path / "m.onnx", nodes, inputs, ["y"]), tmp_path, {"a": np.array(TEXTS, object), "b": ids}, want
    )
    assert columns_of(loaded)["a"].combiner == "sum"


@pytest.mark.parametrize(
    ("nodes", "batch", "says"),
    [
        (cross(["a", "b"], 5, N=1), "B", "operator SparseCross: 2 inputs"),
        (cross(["a", "n"], 5), "B", "operator SparseCross: crosses 'n'; expected texts or whole numbers"),
        (cross(["a", "b"], 0), "B", "operator SparseCross: 0 buckets"),
        (cross(["a", "b"], 5), 3, r"operator SparseCross: crosses 'a'; input 'a' has shape \[3, 1\]"),
    ],
)
def test_other_crosses_are_named(nodes: list[onnx.NodeProto], batch: Any, says: str, tmp_path: Path) -> None:
    inputs = {"a": (STRING, [batch, 1]), "b": (INT, [batch, 1]), "n": (FLOAT, [batch, 1])}
    with pytest.raises(ModelError, match=says):
        load_model(model(tmp_path / "m.onnx", nodes, inputs, ["y"]), 4)
