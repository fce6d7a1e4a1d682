"""Columns behind operators that no reader knows: sparse tensors, masks, unknown keys that are hashed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import farmhash
import numpy as np
import onnx
import pytest
from features.column_nets import CITIES, CONSTANTS, CONTRIB, INT, STRING, encoder, hashed, model, node
from hypothesis import given
from hypothesis import strategies as st

import veltair
from veltair.compiler.features.feature_description import ColumnInput, Feature, FeatureDescription
from veltair.compiler.features.feature_model import join_features
from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses
from veltair.compiler.onnx.onnx_model import OnnxModel, load_model
from veltair.compiler.reference_model import ReferenceModel
from veltair.errors import ModelError
from veltair.profiles.artifact.strings import Strings

TEXTS = [b"Hello", b"", b"\0", "Zürich".encode(), b"Rome", b"", b"x" * 90, b"Oslo"]
NUMBERS = [0, -1, 7, 2**63 - 1, -(2**63), 5, 2**40, -7]
CONSTANTS.setdefault("empty", np.array([""], object))
CONSTANTS.setdefault("minus", np.array(-1))
CONSTANTS.setdefault("width", np.array([4]))
CONSTANTS.setdefault("first", np.array([0]))


def bucket(text: bytes, buckets: int) -> int:
    return int(farmhash.fingerprint64(text) % buckets)


def sparse(given: str, equal: onnx.NodeProto, ids: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Rows of the values that are present, scattered into zeros, as TensorFlow's safe look-ups come out of tf2onnx."""
    return [
        equal,
        node("Not", [equal.output[0]], f"{given}.present"),
        node("NonZero", [f"{given}.present"], f"{given}.places"),
        node("Transpose", [f"{given}.places"], f"{given}.indices"),
        node("GatherND", [given, f"{given}.indices"], f"{given}.values"),
        ids,
        node("Gather", ["cities", ids.output[0]], f"{given}.found"),
        node("Shape", [given], f"{given}.shape"),
        node("Slice", [f"{given}.shape", "first", "one"], f"{given}.batch"),
        node("Concat", [f"{given}.batch", "width"], f"{given}.all", axis=0),
        node("ConstantOfShape", [f"{given}.all"], f"{given}.zeros"),
        node("Slice", [f"{given}.indices", "first", "one", "one"], f"{given}.rows_of"),
        node("ScatterND", [f"{given}.zeros", f"{given}.rows_of", f"{given}.found"], f"{given}.rows"),
    ]


NO_CITY = node("StringEqual", ["city", "empty"], "no.city", domain=CONTRIB)
CITY = sparse("city", NO_CITY, hashed("city.values", "h", "five"))
DENSE = [node("Concat", ["city.rows", "n.rows"], "y", axis=1)]
NUMBER = sparse("n", node("Equal", ["n", "minus"], "no.n"), hashed("n.text", "hn", "five"))
NUMBER.insert(5, node("Cast", ["n.values"], "n.text", to=STRING))
BOTH = {"city": (STRING, ["B", 1]), "n": (INT, ["B", 1])}


def wanted(values: list[Any], missing: Any) -> np.ndarray[Any, Any]:
    texts = [value if isinstance(value, bytes) else b"%d" % value for value in values]
    present = np.array([value != missing for value in values])
    return np.where(present[:, None], CITIES[[bucket(text, 5) for text in texts]], 0)


def columns_of(loaded: OnnxModel) -> dict[str, Any]:
    assert loaded.columns is not None
    return {column.feature: column for column in loaded.columns.description.columns}


def inputs_of_nodes(loaded: OnnxModel) -> list[list[str]]:
    front = join_features(loaded, None)
    assert front is not None
    return [list(each.input) for each in front.model.nodes]


def viewed(given: str) -> list[onnx.NodeProto]:
    """Rows in the shape that they have, which is computed, as TensorFlow's input layers have them."""
    return [
        node("Shape", [f"{given}.rows"], f"{given}.extents"),
        node("Slice", [f"{given}.extents", "first", "one"], f"{given}.count"),
        node("Concat", [f"{given}.count", "width"], f"{given}.view", axis=0),
        node("Reshape", [f"{given}.rows", f"{given}.view"], f"{given}.viewed"),
    ]


def test_views_whose_shapes_are_computed_keep_no_columns_apart(tmp_path: Path) -> None:
    """What lies between them stays, and so does a column that somebody else reads."""
    side_by_side = ["city.viewed", "n.viewed", "plain", "city.rows", "n.viewed"]
    nodes = [*CITY, *NUMBER, *viewed("city"), *viewed("n"), node("Concat", side_by_side, "z", axis=1)]
    plain = {**BOTH, "plain": (onnx.TensorProto.FLOAT, ["B", 2])}
    alone = [*CITY, *NUMBER, *viewed("city"), *viewed("n"), node("Concat", side_by_side[:3], "z", axis=1)]
    loaded = load_model(model(tmp_path / "alone.onnx", alone, plain, ["z"]), 8)
    assert inputs_of_nodes(loaded) == [["z/joined0", "plain"]]
    path = model(tmp_path / "m.onnx", nodes, plain, ["z"])
    assert inputs_of_nodes(load_model(path, 8)) == [["city.rows", "n.rows", "plain", "city.rows", "n.rows"]]
    artifact = veltair.compile(path, tmp_path / "a", trials=0, levels="modelled", max_batch=8, precision="fp32")
    city, number, rest = wanted(TEXTS, b""), wanted(NUMBERS, -1), np.arange(16, dtype=np.float32).reshape(8, 2)
    feeds = {"city": np.array(TEXTS, object)[:, None], "n": np.array(NUMBERS)[:, None], "plain": rest}
    with veltair.load(artifact, threads=1) as compiled:
        (found,) = compiled(feeds).values()
    np.testing.assert_allclose(found, np.concatenate([city, number, rest, city, number], 1), rtol=1e-6)


def test_sparse_look_ups_are_rows_of_a_table(tmp_path: Path) -> None:
    """No operator of them is left, and the artifact and the reference of `verify` give what the operators mean."""
    path = model(tmp_path / "m.onnx", [*CITY, *NUMBER, *DENSE], BOTH, ["y"])
    columns = columns_of(loaded := load_model(path, 8))
    assert inputs_of_nodes(loaded) == [["y/joined0"]]
    assert all(column.table for column in columns.values())
    assert columns["city"].vocabulary == ("",) and columns["city"].oov == 5 and columns["n"].vocabulary == (-1,)
    artifact = veltair.compile(path, tmp_path / "a", trials=0, levels="modelled", max_batch=8, precision="fp32")
    want = np.concatenate([wanted(TEXTS, b""), wanted(NUMBERS, -1)], 1)
    feeds = {"city": np.array(TEXTS, object)[:, None], "n": np.array(NUMBERS)[:, None]}
    with veltair.load(artifact, threads=1) as compiled:
        for rows in (slice(1, 2), slice(0, 3), slice(0, 8)):
            (found,) = compiled({name: value[rows] for name, value in feeds.items()}).values()
            np.testing.assert_allclose(found, want[rows], rtol=1e-6)
    front = join_features(loaded, None)
    raw = {"city": Strings.from_values(TEXTS), "n": feeds["n"]}
    reference = ReferenceModel(path, artifact.manifest, front)
    np.testing.assert_allclose(reference.outputs({}, raw, 8)[0].reshape(8, -1), want, rtol=1e-6)


def test_unknown_keys_go_to_buckets_behind_the_known(tmp_path: Path) -> None:
    """A key's own place, or else one of three buckets: two encoders before one look-up."""
    nodes = [
        encoder("city", "known", ["Rome", "Oslo"], [3, 4], -1),
        hashed("city", "h", "three"),
        node("Less", ["known", "zero"], "unknown"),
        node("Where", ["unknown", "h", "known"], "id"),
        node("Gather", ["cities", "id"], "y"),
    ]
    loaded = load_model(model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"])}, ["y"]), 4)
    column = columns_of(loaded)["city"]
    assert (column.vocabulary, column.oov) == (("Rome", "Oslo"), 3) and loaded.columns is not None
    np.testing.assert_array_equal(loaded.columns.tables[column.table], CITIES[[3, 4, 0, 1, 2]])


def test_ids_that_are_an_output_are_ids(tmp_path: Path) -> None:
    nodes = [
        hashed("city", "h", "five"),
        node("Gather", ["cities", "h"], "rows"),
        node("Relu", ["rows"], "y"),
        node("Abs", ["h"], "id"),
    ]
    path = model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"])}, ["y", "id"])
    proto = onnx.load(path)
    proto.graph.output[1].type.tensor_type.elem_type = INT
    onnx.save(proto, path)
    loaded = load_model(path, 4)
    assert loaded.columns is not None
    assert sorted(str(column.table) for column in loaded.columns.description.columns) == ["None", "rows"]


def test_what_depends_on_the_other_rows_is_no_column(tmp_path: Path) -> None:
    """The row less the mean of the batch: tried in other batches, it is not that of its class, so the look-up is."""
    nodes = [
        hashed("city", "h", "five"),
        node("Where", ["never", "zero", "h"], "id"),
        node("Unique", ["id"], ["kinds", "", "places", ""], sorted=0),
        node("Gather", ["cities", "kinds"], "some"),
        node("Gather", ["some", "places"], "found"),
        node("ReduceMean", ["found", "first"], "mean"),
        node("Sub", ["found", "mean"], "y"),
    ]
    CONSTANTS.setdefault("never", np.array(False))
    loaded = load_model(model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"])}, ["y"]), 4)
    column = columns_of(loaded)["city"]
    assert column.table == "found" and {n.op_type for n in loaded.nodes} >= {"ReduceMean", "Sub"}


@pytest.mark.parametrize(
    ("nodes", "shape", "says"),
    [
        ([node("StringHash", ["city"], "y", domain=CONTRIB)], ["B"], "node 'y': operator StringHash reads .* 'city'"),
        ([hashed("city", "h", "five")], ["B", 3, 2], r"input 'city' has shape \['B', 3, 2\]; expected"),
        ([node("Identity", ["city"], "y")], ["B"], "input 'city' is an output"),
    ],
)
def test_what_is_no_class_is_named(nodes: Any, shape: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        load_model(model(tmp_path / "m.onnx", nodes, {"city": (STRING, shape)}, ["y"]), 4)


def test_more_buckets_than_rows_are_refused(tmp_path: Path) -> None:
    nodes = [hashed("city", "h", "many"), node("Gather", ["cities", "h"], "y")]
    loaded = load_model(model(tmp_path / "m.onnx", nodes, {"city": (STRING, ["B"])}, ["y"]), 4)
    with pytest.raises(ModelError, match=r"gives ids from 0 to 1048575, node .* looks them up in 5 rows"):
        join_features(loaded, None)


@given(
    st.lists(st.binary(max_size=20), min_size=1, max_size=8),
    st.lists(st.text(max_size=4), unique=True, max_size=3).map(tuple),
    st.integers(1, 50),
)
def test_classes_are_the_ids_of_their_column(texts: list[bytes], keys: tuple[str, ...], buckets: int) -> None:
    classes = ValueClasses("city", "string", keys, buckets)
    column = classes.column("ids", None)
    feature = Feature(name="city", kind="string", empty="keep")
    joined = ColumnInput(name="x", columns=("ids",))
    description = FeatureDescription(features=(feature,), columns=(column,), inputs=(joined,))
    np.testing.assert_array_equal(reference_inputs(description, {"city": texts})["x"][:, 0], classes.of(texts))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(0, 9))
def test_classes_of_numbers_are_those_of_their_digits(numbers: list[int], buckets: int) -> None:
    keys = tuple(dict.fromkeys(numbers[:3]))
    found = ValueClasses("n", "int", keys, buckets).of(np.array(numbers)[:, None])[:, 0]
    for number, own in zip(numbers, found.tolist(), strict=True):
        other = len(keys) + (bucket(b"%d" % number, buckets) if buckets else 0)
        assert own == (keys.index(number) if number in keys else other)
