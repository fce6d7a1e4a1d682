"""What skl2onnx writes around a pipeline: probabilities by label, encoders of text, numbers that trees give."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiled_models import Told
from decision_stumps import stump
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import run as run_layers

import veltair
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.quantisation.calibration import calibrate
from veltair.errors import ModelError

ML, FLOAT, INT64, STRING = "ai.onnx.ml", TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
node, port = helper.make_node, helper.make_tensor_value_info
random = np.random.default_rng(5)


def saved(path: Path, nodes: Sequence[Any], inputs: Any, outputs: Any, **constants: Any) -> Path:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "net", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def by_label(key: int) -> onnx.ValueInfoProto:
    value = helper.make_tensor_type_proto(FLOAT, [])
    return helper.make_value_info("y", helper.make_sequence_type_proto(helper.make_map_type_proto(key, value)))


@pytest.mark.parametrize(
    ("key", "labels"),
    [(INT64, {"classlabels_int64s": [7, -2, 3]}), (STRING, {"classlabels_strings": ["no", "b", "a"]})],
)
def test_probabilities_by_label_are_a_matrix(tmp_path: Path, told: Told, key: int, labels: dict[str, Any]) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=1),
        node("ZipMap", ["p"], ["y"], domain=ML, **labels),
    ]
    weights = random.standard_normal((5, 3), np.float32)
    path = saved(tmp_path / "net.onnx", nodes, [port("x", FLOAT, ["n", 5])], [by_label(key)], w=weights)
    x = random.standard_normal((4, 5), np.float32)
    rows = ort.InferenceSession(str(path)).run(None, {"x": x})[0]
    artifact = veltair.compile(path, tmp_path / "out", trials=0, precision="fp32")
    assert [(each.name, each.shape) for each in artifact.manifest.outputs] == [("y", (-1, 3))]
    with veltair.load(artifact) as run:
        found = run({"x": x})["y"]
    named = next(iter(labels.values()))
    np.testing.assert_allclose(found, [[row[label] for label in named] for row in rows], rtol=1e-5)
    code, output, _ = told("verify", tmp_path / "out", path, "--json")
    assert (code, json.loads(output)["mismatches"]) == (0, [])
    (accuracy,) = veltair.measure_accuracy(artifact, path, {"x": x})
    assert accuracy.max_rel_err < 1e-5


def test_labels_that_are_no_text_are_columns_all_the_same(tmp_path: Path) -> None:
    nodes = [node("Softmax", ["x"], ["p"], axis=1)]
    nodes.append(node("ZipMap", ["p"], ["y"], domain=ML, classlabels_strings=[b"no", b"\xff", b"\xfe"]))
    path = saved(tmp_path / "net.onnx", nodes, [port("x", FLOAT, ["n", 3])], [by_label(STRING)])
    assert [(value.name, value.shape) for value in load_model(path, 4).outputs] == [("y", (-1, 3))]


def test_a_list_of_tensors_is_an_output_for_each(tmp_path: Path, told: Told) -> None:
    """The probabilities of several targets."""
    nodes = [node("Softmax", ["x"], ["p"], axis=1), node("Relu", ["x"], ["z"])]
    nodes.append(node("SequenceConstruct", ["p", "z", "p"], ["y"]))
    made = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    outputs = [made, port("z", FLOAT, ["n", 5])]
    path = saved(tmp_path / "net.onnx", nodes, [port("x", FLOAT, ["n", 5])], outputs)
    x = random.standard_normal((4, 5), np.float32)
    expected, z = ort.InferenceSession(str(path)).run(None, {"x": x})
    artifact = veltair.compile(path, tmp_path / "out", trials=0, precision="fp32")
    assert [(each.name, each.shape) for each in artifact.manifest.outputs][:2] == [("y/0", (-1, 5)), ("y/1", (-1, 5))]
    with veltair.load(artifact) as run:
        found = run({"x": x})
    np.testing.assert_array_equal(found["z"], z)
    for i, part in enumerate(expected):
        np.testing.assert_allclose(found[f"y/{i}"], part, rtol=1e-5)
    assert told("verify", tmp_path / "out", path)[0] == 0
    assert [each.name for each in veltair.measure_accuracy(artifact, path, {"x": x})] == ["y/0", "y/1", "y/2", "z"]


def test_other_sequences_are_refused_by_name(tmp_path: Path) -> None:
    made = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    nodes = [node("SplitToSequence", ["x"], ["y"], axis=1)]
    path = saved(tmp_path / "net.onnx", nodes, [port("x", FLOAT, ["n", 5])], [made])
    with pytest.raises(ModelError, match="output 'y' is of sequence type; expected a tensor"):
        load_model(path, 4)


def test_categories_of_text_are_looked_up(tmp_path: Path) -> None:
    nodes = [
        node("Gather", ["c", "first"], ["column"], axis=1),
        node("OneHotEncoder", ["column"], ["ones"], domain=ML, cats_strings=["red", "blue", "ü"], zeros=1),
        node("Reshape", ["ones", "flat"], ["flattened"]),
        node("Concat", ["x", "flattened"], ["y"], axis=1),
    ]
    inputs = [port("x", FLOAT, ["n", 2]), port("c", STRING, ["n", 1])]
    constants = {"first": np.array([0]), "flat": np.array([-1, 3])}
    path = saved(tmp_path / "net.onnx", nodes, inputs, [port("y", FLOAT, ["n", 5])], **constants)
    given = {"x": random.standard_normal((5, 2), np.float32), "c": np.array([["ü"], ["red"], [""], ["b"], ["blue"]])}
    expected = ort.InferenceSession(str(path)).run(None, given | {"c": given["c"].astype(object)})[0]
    with veltair.load(veltair.compile(path, tmp_path / "out", trials=0, precision="fp32")) as run:
        np.testing.assert_array_equal(run(given)["y"], expected)


def test_encoders_of_columns_beside_numbers(tmp_path: Path) -> None:
    """A column transformer of an imputer with a scaler, and of encoders that read an input each."""
    nodes = [
        node("OneHotEncoder", ["sex"], ["sexout"], domain=ML, cats_strings=["f", "m"], zeros=1),
        node("OneHotEncoder", ["port"], ["portout"], domain=ML, cats_strings=["C", "Q", "S"], zeros=1),
        node("Concat", ["sexout", "portout"], ["joined"], axis=-1),
        node("Reshape", ["joined", "flat"], ["ones"]),
        node("Imputer", ["x"], ["whole"], domain=ML, imputed_value_floats=[1.0, 2], replaced_value_float=np.nan),
        node("Scaler", ["whole"], ["scaled"], domain=ML, offset=[0.5, 1], scale=[2.0, 3]),
        node("Concat", ["scaled", "ones"], ["y"], axis=1),
    ]
    inputs = [port("x", FLOAT, ["n", 2]), port("sex", STRING, ["n", 1]), port("port", STRING, ["n", 1])]
    path = saved(tmp_path / "net.onnx", nodes, inputs, [port("y", FLOAT, ["n", 7])], flat=np.array([-1, 5]))
    given = {"x": np.array([[1, np.nan], [np.nan, 3], [-1, 0]], np.float32)}
    given |= {"sex": np.array([["f"], ["x"], ["m"]]), "port": np.array([["S"], ["C"], [""]])}
    texts = {name: given[name].astype(object) for name in ("sex", "port")}
    expected = ort.InferenceSession(str(path)).run(None, given | texts)[0]
    artifact = veltair.compile(path, tmp_path / "out", trials=0, precision="fp32")
    assert "onnxruntime" not in {layer.op for layer in artifact.manifest.layers}
    with veltair.load(artifact) as run:
        np.testing.assert_allclose(run(given)["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(("width", "columns"), [(3, (2, 0)), (1, (0, 0))])
def test_ordinals_of_columns_of_text(tmp_path: Path, width: int, columns: tuple[int, int]) -> None:
    nodes = [node("ArrayFeatureExtractor", ["c", f"index{i}"], [f"column{i}"], domain=ML) for i in (0, 1)]
    for i, words in enumerate((["red", "blue"], ["", "ü", "red"])):
        keys = {"keys_strings": words, "values_int64s": [*range(len(words))], "default_int64": -1}
        nodes.append(node("LabelEncoder", [f"column{i}"], [f"code{i}"], domain=ML, **keys))
        nodes.append(node("Reshape", [f"code{i}", "flat"], [f"ordinal{i}"]))
    nodes += [node("Concat", ["ordinal0", "ordinal1"], ["both"], axis=1), node("Cast", ["both"], ["y"], to=FLOAT)]
    constants = {"index0": np.int64(columns[0]), "index1": np.array([columns[1]]), "flat": np.array([-1, 1])}
    inputs, outputs = [port("c", STRING, ["n", width])], [port("y", FLOAT, ["n", 2])]
    path = saved(tmp_path / "net.onnx", nodes, inputs, outputs, **constants)
    given = np.array([["red", "x", "ü"], ["", "blue", "blue"], ["ü", "", "red"]])[:, :width]
    expected = ort.InferenceSession(str(path)).run(None, {"c": given.astype(object)})[0]
    with veltair.load(veltair.compile(path, tmp_path / "out", trials=0, precision="fp32")) as run:
        np.testing.assert_array_equal(run({"c": given})["y"], expected)


def test_an_encoder_that_refuses_other_categories_stays(tmp_path: Path) -> None:
    nodes = [node("OneHotEncoder", ["c"], ["y"], "ones", domain=ML, cats_strings=["red", "blue"], zeros=0)]
    path = saved(tmp_path / "net.onnx", nodes, [port("c", STRING, ["n", 1])], [port("y", FLOAT, ["n", 1, 2])])
    with pytest.raises(ModelError, match="node 'ones': operator OneHotEncoder"):
        load_model(path, 4)


def test_numbers_that_nodes_compute_are_no_features(tmp_path: Path) -> None:
    """A forest's leaves are encoded as its depths: the forest is no column."""
    nodes = [
        node("ArgMax", ["x"], ["leaf"], axis=1, keepdims=1),
        node("LabelEncoder", ["leaf"], ["y"], domain=ML, keys_int64s=[0, 1, 2], values_floats=[0.5, 4.0, -1.0]),
    ]
    path = saved(tmp_path / "net.onnx", nodes, [port("x", FLOAT, ["n", 3])], [port("y", FLOAT, ["n", 1])])
    x = random.standard_normal((3, 3), np.float32)
    (found,), operators = run_layers(path, {"x": x}, "fp32", batch=3)
    np.testing.assert_array_equal(found, ort.InferenceSession(str(path)).run(None, {"x": x})[0])
    assert "columns" not in operators


def test_trees_have_the_targets_that_they_have(tmp_path: Path) -> None:
    """Skl2onnx states one target, however many a forest has."""
    trees: dict[str, Any] = {
        "n_targets": 2,
        **stump(feature=0, value=0.0),
        "target_treeids": [0, 0, 0, 0],
        "target_nodeids": [1, 1, 2, 2],
        "target_ids": [0, 1, 0, 1],
        "target_weights": [1.0, 2, 3, 4],
    }
    nodes = [node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, **trees)]
    path = saved(tmp_path / "net.onnx", nodes, [port("x", FLOAT, ["n", 3])], [port("y", FLOAT, ["n", 1])])
    x = random.standard_normal((4, 3), np.float32)
    (found,), _ = run_layers(path, {"x": x}, "fp32", batch=4)
    np.testing.assert_array_equal(found, np.where(x[:, :1] <= 0, [[1, 2]], [[3, 4]]))


def labels_of_trees(path: Path) -> Path:
    """Labels of what trees give, behind a dense layer: ONNX infers no type of trees in older operator sets."""
    leaves = {"target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0]}
    trees = {"n_targets": 1, **stump(feature=0, value=0.0), **leaves}
    labels = {"keys_floats": [1.0, 2.0], "values_strings": ["left", "right"], "default_string": "none"}
    nodes = [
        node("MatMul", ["x", "w"], ["moved"]),
        node("TreeEnsembleRegressor", ["moved"], ["leaf"], domain=ML, **trees),
        node("LabelEncoder", ["leaf"], ["y"], domain=ML, **labels),
    ]
    saved(path, nodes, [port("x", FLOAT, ["n", 3])], [port("y", STRING, ["n", 1])])
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32), "w"))
    model.opset_import[1].version = 2
    onnx.save(model, path)
    return path


def test_labels_of_what_trees_give_compile(tmp_path: Path) -> None:
    """ONNX's inference crashed the process at them; and trees compare what is computed in floats."""
    path = labels_of_trees(tmp_path / "net.onnx")
    x = random.standard_normal((4, 3), np.float32)
    expected = ort.InferenceSession(str(path)).run(None, {"x": x})[0]
    artifact = veltair.compile(path, tmp_path / "out", trials=0)
    assert artifact.manifest.precision == "fp32"
    with veltair.load(artifact) as run:
        np.testing.assert_array_equal(run({"x": x})["y"], expected)


def test_labels_of_what_trees_give_are_not_calibrated(tmp_path: Path) -> None:
    path = labels_of_trees(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"node 'LabelEncoder_2': cannot be calibrated: the type of its input"):
        calibrate(path, {"x": random.standard_normal((4, 3), np.float32)}, tmp_path)


@pytest.mark.parametrize("kind", ["float64", "float16", "int16", "uint16", "uint32", "uint64"])
def test_inputs_and_outputs_of_other_types(tmp_path: Path, kind: str) -> None:
    """scikit-learn's data is float64, and skl2onnx takes the type of the data that it is shown."""
    proto_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [node("Cast", ["x"], ["floats"], to=FLOAT), node("Relu", ["floats"], ["r"])]
    outputs = [port("r", FLOAT, ["n", 3])]
    if kind != "float16":  # which nobody computes as an output
        nodes.append(node("Cast", ["r"], ["y"], to=proto_type))
        outputs.append(port("y", proto_type, ["n", 3]))
    path = saved(tmp_path / "net.onnx", nodes, [port("x", proto_type, ["n", 3])], outputs)
    x = np.array([[1, 2, 300], [0, 7, 9]], kind)
    found, _ = run_layers(path, {"x": x}, "fp32", batch=2)
    for ours, expected in zip(found, ort.InferenceSession(str(path)).run(None, {"x": x}), strict=True):
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected)
