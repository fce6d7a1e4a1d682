"""The hash of onnxruntime-extensions becomes a column, and its buckets are TensorFlow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import farmhash
import numpy as np
import onnx
from features.column_nets import CITIES, CITY, INT, STRING, hashed, model, node
from onnx import numpy_helper

from veltair.compiler.features.feature_description import ColumnStep
from veltair.compiler.features.feature_model import FeatureModel, join_features
from veltair.compiler.features.feature_reference import reference_inputs, reference_layer
from veltair.compiler.features.kernel.columns_kernel import ColumnsSpace
from veltair.compiler.features.random_features import draw_buffers
from veltair.compiler.onnx.onnx_model import load_model
from veltair.machine.isa import cpu_features
from veltair.profiles.artifact.strings import Strings

TEXTS = [b"Hello", b"TensorFlow", b"2.x", b"", "Zürich".encode(), b"a" * 70]
NUMBERS = [0, -7, 12, 1 << 40, -(1 << 63), 5]


def rows_of(texts: list[bytes], buckets: int) -> Any:
    return CITIES[[farmhash.fingerprint64(text) % buckets for text in texts]]


def loaded(path: Path, nodes: Any, inputs: Any) -> FeatureModel:
    front = join_features(load_model(model(path / "m.onnx", nodes, inputs, ["y"]), 6), None)
    assert front is not None
    return front


def test_text_becomes_the_row_of_its_bucket(tmp_path: Path) -> None:
    nodes = [hashed("city", "id", "three"), node("Gather", ["cities", "id"], "rows"), node("Relu", ["rows"], "y")]
    front = loaded(tmp_path, nodes, {"city": (STRING, ["B"])})
    (given,) = reference_inputs(front.description, {"city": Strings.from_values(TEXTS)}, front.tables).values()
    np.testing.assert_array_equal(given, rows_of(TEXTS, 3))
    assert [farmhash.fingerprint64(text) % 3 for text in TEXTS[:3]] == [0, 2, 2]  # TensorFlow's documentation


def test_whole_numbers_are_hashed_as_decimal_text(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["n"], "text", to=STRING),
        node("Reshape", ["text", "flat"], "flat.text"),
        hashed("flat.text", "id", "five"),
        node("Gather", ["cities", "id"], "rows"),
        node("Relu", ["rows"], "y"),
    ]
    front = loaded(tmp_path, nodes, {"n": (INT, ["B", 1])})
    (given,) = reference_inputs(front.description, {"n": np.array(NUMBERS)}, front.tables).values()
    np.testing.assert_array_equal(given, rows_of([b"%d" % n for n in NUMBERS], 5))


def test_operators_between_are_carried_out_on_all_buckets(tmp_path: Path) -> None:
    nodes = [
        hashed("city", "id", "many"),
        node("Mod", ["id", "three"], "small"),
        node("Gather", ["cities", "small"], "rows"),
        node("Relu", ["rows"], "y"),
    ]
    front = loaded(tmp_path, nodes, {"city": (STRING, ["B", 1])})
    (given,) = reference_inputs(front.description, {"city": Strings.from_values(TEXTS)}, front.tables).values()
    wanted = CITIES[[farmhash.fingerprint64(text) % (1 << 20) % 3 for text in TEXTS]]
    np.testing.assert_array_equal(given, wanted)


def test_hashed_tokens_are_summed_where_an_empty_one_counts_nothing(tmp_path: Path) -> None:
    empty = farmhash.fingerprint64(b"") % 5
    table = CITIES.copy()
    table[empty] = 0
    nodes = [
        node("StringSplit", ["history"], ["tokens", "counts"], delimiter=";"),
        hashed("tokens", "id", "five"),
        node("Gather", ["table", "id"], "rows"),
        node("ReduceSum", ["rows", "one"], "summed", keepdims=0),
        node("Relu", ["summed"], "y"),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"history": (STRING, ["B"])}, ["y"])
    proto = onnx.load(str(path))
    proto.graph.initializer.append(numpy_helper.from_array(table, "table"))
    onnx.save(proto, path)
    front = join_features(load_model(path, 6), None)
    assert front is not None
    texts = [b"a;b;c", b"", b"a;;a"]
    (given,) = reference_inputs(front.description, {"history": Strings.from_values(texts)}, front.tables).values()
    wanted = [sum(table[farmhash.fingerprint64(t) % 5] for t in text.split(b";")) for text in texts]
    np.testing.assert_allclose(given, wanted, rtol=1e-6)


def test_a_hash_stands_beside_a_vocabulary_in_one_layer(tmp_path: Path) -> None:
    nodes = [
        *CITY,
        hashed("kind", "id", "five"),
        node("Gather", ["cities", "id"], "kind.rows"),
        node("Concat", ["city.rows", "kind.rows"], "y", axis=1),
    ]
    front = loaded(tmp_path, nodes, {"city": (STRING, ["B"]), "kind": (STRING, ["B"])})
    (spec,) = front.layers
    assert [column.step for column in front.description.columns] == [ColumnStep.VOCABULARY, ColumnStep.HASH]
    assert ColumnsSpace().build(spec, ColumnsSpace().points(spec, cpu_features())[0], cpu_features()).weights
    banks = draw_buffers(front.description, ["ends", "bytes"], 3, np.random.default_rng(1))
    assert reference_layer(spec, banks).shape == (3, 8)
