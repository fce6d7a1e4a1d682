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
CONSTANTS |= {
    "cross/absent id": np.array(-1),
    "cross/low id": np.array(0),
    "cross/high id": np.array(6),
    "cross/other id": np.array(2),
}
CONSTANTS["cross/by place"] = np.array([[0, 3]])
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


def within(name: str, out: str) -> list[onnx.NodeProto]:
    """What an identity column makes of ids: those that are absent are left out, those out of [0, 6) become 2."""
    return [
        node("Equal", [name, "cross/absent id"], f"{out}.none"),
        node("Not", [f"{out}.none"], f"{out}.there"),
        node("NonZero", [f"{out}.there"], f"{out}.at"),
        node("Transpose", [f"{out}.at"], f"{out}.indices"),
        node("GatherND", [name, f"{out}.indices"], f"{out}.some"),
        node("Less", [f"{out}.some", "cross/low id"], f"{out}.below"),
        node("GreaterOrEqual", [f"{out}.some", "cross/high id"], f"{out}.above"),
        node("Or", [f"{out}.below", f"{out}.above"], f"{out}.odd"),
        node("Where", [f"{out}.odd", "cross/other id", f"{out}.some"], f"{out}.ids"),
        node("Shape", [name], f"{out}.extent"),
    ]


def sparse_sum() -> list[onnx.NodeProto]:
    """The sum of each row's buckets, of which it may have none."""
    return [
        node("Gather", ["cities", "buckets"], "rows"),
        node("Slice", ["places", "start", "one", "one"], "lines"),
        node("Shape", ["b"], "batch", end=1),
        node("Concat", ["batch", "width"], "size", axis=0),
        node("ConstantOfShape", ["size"], "zeros"),
        node("ScatterND", ["zeros", "lines", "rows"], "y", reduction="add"),
    ]


@pytest.mark.parametrize("bounded", [True, False])
def test_ids_that_are_compared_with_bounds_are_crossed(bounded: bool, tmp_path: Path) -> None:
    nodes = [*within("a", "id")]
    sparse = ["id.indices", "id.ids" if bounded else "id.some", "id.extent", "b"]
    whole = {"N": 1, "hashed_output": 1, "num_buckets": 5, "hash_key": KEY}
    nodes += [node("SparseCross", sparse, ["places", "buckets", "shape"], **whole), *sparse_sum()]
    ids = np.array([[0, 5, -1], [6, 2**40, -(2**63)], [-2, 3, 3], [-1, -1, -1]])
    words = [b"x", b"", "ü".encode(), b"Rome"]
    inputs = {"a": (INT, ["B", 3]), "b": (STRING, ["B", 1])}
    taken = [[2 if bounded and not 0 <= i < 6 else i for i in row if i != -1] for row in ids.tolist()]
    pairs = zip(taken, words, strict=True)
    want = np.stack([rows_of([[i, word] for i in row]).sum(0) if row else np.zeros(4) for row, word in pairs])
    feeds = {"a": ids, "b": np.array(words, object)[:, None]}
    check(model(tmp_path / "m.onnx", nodes, inputs, ["y"]), tmp_path, feeds, want.astype(np.float32))


def test_several_intervals_are_crossed_by_their_places(tmp_path: Path) -> None:
    """As a bucketized column of several values has it: the second value's buckets are others than the first's."""
    nodes = [*intervals(), node("Add", ["wide", "cross/by place"], "own")]
    nodes += [node("SparseCross", ["own", "b"], ["places", "buckets", "shape"], hashed_output=1, num_buckets=5, N=0)]
    nodes[-1].attribute.append(onnx.helper.make_attribute("hash_key", KEY))
    numbers = np.concatenate([NUMBERS, NUMBERS[::-1]], 1)
    texts = [b"x", b"", b"Rome", b"y" * 80]
    places = np.digitize(numbers, [0, 5]) + np.array([0, 3])
    want = np.stack([rows_of([[int(p), text] for p in row]).sum(0) for row, text in zip(places, texts, strict=True)])
    inputs = {"n": (FLOAT, ["B", 2]), "b": (STRING, ["B", 1])}
    feeds = {"n": numbers, "b": np.array(texts, object)[:, None]}
    check(model(tmp_path / "m.onnx", [*nodes, *sparse_sum()], inputs, ["y"]), tmp_path, feeds, want)


def test_ids_that_are_reckoned_with_are_no_part(tmp_path: Path) -> None:
    nodes = [node("Mul", ["a", "cross/other id"], "twice"), *cross(["twice", "b"], 5)]
    inputs = {"a": (INT, ["B", 1]), "b": (STRING, ["B", 1])}
    with pytest.raises(ModelError, match="operator SparseCross: crosses 'twice'"):
        load_model(model(tmp_path / "m.onnx", nodes, inputs, ["y"]), 4)


@pytest.mark.parametrize(
    ("nodes", "batch", "says"),
    [
        (cross(["a", "b"], 5, N=1), "B", "operator SparseCross: 2 inputs"),
        (cross(["a", "n"], 5), "B", "operator SparseCross: crosses 'n'; expected texts or whole numbers"),
        (cross(["a", "b"], 0), "B", "operator SparseCross: 0 buckets"),
    ],
)
def test_other_crosses_are_named(nodes: list[onnx.NodeProto], batch: Any, says: str, tmp_path: Path) -> None:
    inputs = {"a": (STRING, [batch, 1]), "b": (INT, [batch, 1]), "n": (FLOAT, [batch, 1])}
    with pytest.raises(ModelError, match=says):
        load_model(model(tmp_path / "m.onnx", nodes, inputs, ["y"]), 4)
