"""Texts of several values a row: bags, sequences of ids, crosses, and hashes by a key or a remainder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from features.checked_columns import TEXTS, bucket, check, columns_of
from features.column_nets import CITIES, CONSTANTS, CONTRIB, INT, STRING, encoder, hashed, model, node

import veltair
from veltair.compiler.features.from_onnx.classes.class_bags import find_bag
from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses
from veltair.compiler.onnx.onnx_model import load_model

COUNTS = {"mean": lambda n: n, "sum": lambda n: 1, "sqrtn": lambda n: n**0.5}
CONSTANTS.setdefault("empty", np.array([""], object))
CONSTANTS.setdefault("last", np.array([-1]))
CONSTANTS.setdefault("seven", np.array(7))


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_rows_of_several_texts_are_bags_whatever_operators_combine_them(combiner: str, tmp_path: Path) -> None:
    """Empty texts do not count: masked rows, divided by what the combiner says."""
    nodes = [
        node("StringEqual", ["city", "empty"], "no.city", domain=CONTRIB),
        node("Not", ["no.city"], "present"),
        node("Cast", ["present"], "mask", to=onnx.TensorProto.FLOAT),
        hashed("city", "h", "five"),
        node("Gather", ["cities", "h"], "rows"),
        node("Unsqueeze", ["mask", "last"], "weights"),
        node("Mul", ["rows", "weights"], "kept"),
        node("ReduceSum", ["kept", "one"], "sums", keepdims=0),
        node("ReduceSum", ["mask", "one"], "count", keepdims=1),
        node("Max", ["count", "least"], "some"),
        node("Sqrt", ["some"], "root"),
        *([node("Identity", ["sums"], "y")] if combiner == "sum" else []),
        *([node("Div", ["sums", "some" if combiner == "mean" else "root"], "y")] if combiner != "sum" else []),
    ]
    want = np.zeros((4, 4), np.float32)
    for row, texts in enumerate(TEXTS):
        found = [CITIES[bucket(text, 5)] for text in texts if text]
        want[row] = np.sum(found, 0) / COUNTS[combiner](len(found)) if found else 0
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B", 3])}, ["y"])
    loaded = check(path, tmp_path, {"city": np.array(TEXTS, object)}, want)
    assert columns_of(loaded)["city"].combiner == combiner and len(loaded.nodes) <= 1


def test_texts_that_stay_apart_are_ids_of_the_graph(tmp_path: Path) -> None:
    nodes = [
        encoder("city", "id", ["Rome", "Oslo"], [3, 1], 0),
        node("Gather", ["cities", "id"], "rows"),
        node("ReduceMax", ["rows", "one"], "y", keepdims=0),
    ]
    places = {b"Rome": 3, b"Oslo": 1}
    want = np.stack([CITIES[[places.get(text, 0) for text in texts]].max(0) for texts in TEXTS])
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B", 3])}, ["y"])
    column = columns_of(check(path, tmp_path, {"city": np.array(TEXTS, object)}, want))["city"]
    assert column.combiner == "sequence" and column.table is None


def test_what_counts_values_twice_is_no_bag() -> None:
    rng, classes = np.random.default_rng(0), ValueClasses("tags", "string", ("a", "b"), width=3)
    table = rng.standard_normal((3, 4)).astype(np.float32)
    assert find_bag(classes, lambda drawn: table[drawn].sum(1), rng) is not None
    assert find_bag(classes, lambda drawn: (table[drawn] ** 2).sum(1) * drawn.max(1, keepdims=True), rng) is None
    assert find_bag(classes, lambda drawn: table[drawn].max(1), rng) is None
    assert find_bag(classes, lambda drawn: table[drawn[:, 0]], rng) is None


def test_a_row_without_values_has_the_row_that_the_graph_gives() -> None:
    rng, classes = np.random.default_rng(0), ValueClasses("tags", "string", ("a", "", "b"), 4, width=2)
    table, empty = rng.standard_normal((7, 4)).astype(np.float32), np.ones(4, np.float32)

    def mean(drawn: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        counts = (drawn != 1).sum(1)[:, None]
        sums = (table[drawn] * (drawn != 1)[..., None]).sum(1)
        return np.where(counts, sums / np.maximum(counts, 1), empty).astype(np.float32)

    bag = find_bag(classes, mean, rng)
    assert bag is not None and (bag.combiner, bag.absent, bag.classes.keys) == ("mean", 1, ("", "a", "b"))
    np.testing.assert_allclose(bag.rows[-1], empty)
    column = bag.column("tags", "t")
    assert column.empty_row == 7 and column.guards[0].remove == (1, 7)


def test_salted_hashes_and_remainders_are_buckets(tmp_path: Path) -> None:
    """Buckets are TensorFlow's (tf.strings.to_hash_bucket_strong of 2.21), remainders Python's."""
    strong = {"num_buckets": 5, "key": [133, 137]}
    nodes = [
        node("StringToHashBucketStrong", ["city"], "h", **strong),
        node("Gather", ["cities", "h"], "city.rows"),
        node("Mod", ["n", "seven"], "rest"),
        node("Min", ["rest", "top"], "least.rest"),
        node("Gather", ["cities", "least.rest"], "n.rows"),
        node("Concat", ["city.rows", "n.rows"], "y", axis=1),
    ]
    texts, numbers = [b"Rome", b"", b"x" * 90, "Zürich".encode()], [-1, 2**63 - 1, -(2**63), 9]
    want = np.concatenate([CITIES[[2, 0, 0, 0]], CITIES[[min(n % 7, 4) for n in numbers]]], 1)
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"]), "n": (INT, ["B"])}, ["y"])
    loaded = check(path, tmp_path, {"city": np.array(texts, object)[:, None], "n": np.array(numbers)[:, None]}, want)
    columns = columns_of(loaded)
    assert columns["city"].strong_key == (133, 137) and columns["n"].remainder


def test_columns_of_classes_are_those_of_training(tmp_path: Path) -> None:
    """The columns that an artifact keeps are read again, unknown keys and keys of hashes with them."""
    nodes = [
        encoder("city", "known", ["Rome", "Oslo"], [3, 4], -1),
        node("StringToHashBucketStrong", ["city"], "h", num_buckets=3, key=[1, 2]),
        node("Less", ["known", "zero"], "unknown"),
        node("Where", ["unknown", "h", "known"], "id"),
        node("Gather", ["cities", "id"], "rows"),
        node("ReduceSum", ["rows", "one"], "y", keepdims=0),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B", 3])}, ["y"])
    artifact = veltair.compile(path, tmp_path / "a", trials=0, levels="modelled", max_batch=8, precision="fp32")
    columns = veltair.features(artifact)
    (bag,) = columns({"city": TEXTS}).values()
    assert bag.offsets.tolist() == [0, 3, 6, 9, 12]
    column = columns_of(load_model(path, 8))["city"]
    tables = load_model(path, 8).columns
    assert tables is not None and column.oov == 3
    sums = np.add.reduceat(tables.tables[column.table][bag.ids], bag.offsets[:-1])
    with veltair.load(artifact, threads=1) as compiled:
        (found,) = compiled({"city": np.array(TEXTS, object)}).values()
    np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-6)
