"""Outputs of text: the labels are those that ONNX Runtime gives, in every batch, and what is no label is refused."""

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

import veltair
from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

ML, FLOAT, INT64, STRING = "ai.onnx.ml", TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
NAMES = np.array(["no", "ü", "", "no", "b" * 300], object)
node, port = helper.make_node, helper.make_tensor_value_info
random = np.random.default_rng(23)
best = node("ArgMax", ["x"], ["best"], axis=1, keepdims=0)
some = {"x": random.standard_normal((6, 5), np.float32)}


def saved(path: Path, nodes: Sequence[Any], outputs: Any, texts: Any = None, **constants: Any) -> Path:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    if texts is not None:
        tensors.append(numpy_helper.from_array(np.asarray(texts, object), "names"))
    graph = helper.make_graph(list(nodes), "net", [port("x", FLOAT, ["n", 5])], outputs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def compare(path: Path, folder: Path, **options: Any) -> veltair.Artifact:
    artifact = veltair.compile(path, folder, trials=0, precision="fp32", levels="model", **options)
    session = ort.InferenceSession(str(path))
    with veltair.load(artifact) as run:
        for rows in (1, 2, 6):
            feeds = {"x": some["x"][:rows]}
            found = run(feeds)
            for output, expected in zip(session.get_outputs(), session.run(None, feeds), strict=True):
                assert found[output.name].dtype == expected.dtype and found[output.name].shape == expected.shape
                if expected.dtype == object:
                    assert found[output.name].tolist() == expected.tolist()
                else:
                    np.testing.assert_allclose(found[output.name], expected, rtol=1e-5, atol=1e-6)
    return artifact


def test_names_of_a_table(tmp_path: Path, told: Told) -> None:
    path = saved(
        tmp_path / "net.onnx", [best, node("Gather", ["names", "best"], ["y"])], [port("y", STRING, ["n"])], NAMES
    )
    artifact = compare(path, tmp_path / "out")
    (output,) = artifact.manifest.outputs
    assert (output.dtype, output.labels) == ("string", ("no", "ü", "", "b" * 300))
    code, text, _ = told("verify", tmp_path / "out", path)
    assert code == 0 and "y" in text
    (accuracy,) = veltair.measure_accuracy(artifact, path, some)
    assert accuracy.max_rel_err == 0
    assert "string (batch,), one of 4 labels" in told("inspect", tmp_path / "out")[1]
    (described,) = json.loads(told("inspect", tmp_path / "out", "--json")[1])["outputs"]
    assert described == {"name": "y", "dtype": "string", "shape": [-1], "labels": ["no", "ü", "", "b" * 300]}


def test_names_of_several_tables_in_a_layout_of_their_own(tmp_path: Path) -> None:
    constants = {"zero": np.float32(0), "columns": np.array([4, 1, 0, 1]), "turn": np.array([-1, 2, 2])}
    nodes = [
        node("Greater", ["x", "zero"], ["positive"]),
        node("Where", ["positive", "good", "bad"], ["judged"]),
        node("Gather", ["judged", "columns"], ["picked"], axis=1),
        node("Reshape", ["picked", "turn"], ["square"]),
        node("Transpose", ["square"], ["y"], perm=[0, 2, 1]),
        best,
        node("ArrayFeatureExtractor", ["names", "best"], ["row"], domain=ML),
        node("Cast", ["row"], ["z"], to=STRING),
    ]
    outputs = [port("y", STRING, ["n", 2, 2]), port("z", STRING, [1, "n"])]
    texts = {"good": np.array("good", object), "bad": np.array(["no", "bad", "bad", "no", "good"], object)}
    artifact = compare(saved(tmp_path / "net.onnx", nodes, outputs, NAMES, **constants, **texts), tmp_path / "out")
    assert [each.labels for each in artifact.manifest.outputs] == [("no", "bad", "good"), ("no", "ü", "", "b" * 300)]


def test_an_encoder_of_numbers(tmp_path: Path) -> None:
    values = {"keys_int64s": [0, 4, 2], "values_strings": ["zero", "four", "two"], "default_string": "other"}
    nodes = [best, node("LabelEncoder", ["best"], ["y"], domain=ML, **values)]
    nodes.append(node("LabelEncoder", ["best"], ["z"], domain=ML, keys_int64s=[7], values_strings=["seven"]))
    compare(saved(tmp_path / "net.onnx", nodes, [port("y", STRING, ["n"]), port("z", STRING, ["n"])]), tmp_path / "out")


TREE = {
    **stump(feature=0, value=0.0),
    "class_treeids": [0, 0],
    "class_nodeids": [1, 2],
    "class_ids": [0, 1],
    "class_weights": [0.25, 0.75],
}
LINES = {"coefficients": [1.0, 2, 3, 4, 5, -1, -2, -3, -4, -5], "intercepts": [0.0, 1]}


@pytest.mark.parametrize(
    ("kind", "facts"), [("TreeEnsembleClassifier", TREE), ("LinearClassifier", LINES)], ids=["tree", "linear"]
)
def test_classifiers(tmp_path: Path, kind: str, facts: dict[str, Any]) -> None:
    nodes = [node(kind, ["x"], ["label", "scores"], domain=ML, classlabels_strings=["yes", "no"], **facts)]
    outputs = [port("label", STRING, ["n"]), port("scores", FLOAT, ["n", 2])]
    artifact = compare(saved(tmp_path / "net.onnx", nodes, outputs), tmp_path / "out")
    assert artifact.manifest.outputs[0].labels == ("yes", "no")


def test_outputs_that_share_a_table(tmp_path: Path) -> None:
    """The names of the best class and of the best three."""
    nodes = [
        best,
        node("Gather", ["names", "best"], ["y"]),
        node("TopK", ["x", "three"], ["largest", "order"], axis=1),
        node("Gather", ["names", "order"], ["z"]),
    ]
    outputs = [port("y", STRING, ["n"]), port("z", STRING, ["n", 3])]
    compare(saved(tmp_path / "net.onnx", nodes, outputs, NAMES, three=np.array([3])), tmp_path / "out")


def test_a_file_that_lies_ends_in_an_error(tmp_path: Path) -> None:
    """What is read before the file is checked: tables of other sizes, attributes of other types, absent inputs."""
    short = helper.make_tensor("names", STRING, [5], [b"a"] * 5)
    del short.string_data[2:]
    for nodes in (
        [best, node("Gather", ["names", "best"], ["y"])],
        [best, node("Where", ["best"], ["y"])],
        [node("LinearClassifier", ["x"], ["y"], domain=ML, classlabels_strings=5)],
        [best, node("LabelEncoder", ["best"], ["y"], domain=ML, values_strings=[1.5], default_string=2)],
        [best, node("Gather", ["names", "y"], ["y"])],
    ):
        path = saved(tmp_path / "net.onnx", nodes, [port("y", STRING, ["n"])])
        proto = onnx.load(path)
        proto.graph.initializer.append(short)
        path.write_bytes(proto.SerializeToString())
        with pytest.raises(ModelError):
            load_model(path, 4)


def test_labels_that_nobody_reads(tmp_path: Path) -> None:
    """As in a calibration, which reads the scores alone."""
    nodes = [
        node("LinearClassifier", ["x"], ["label", "scores"], domain=ML, classlabels_strings=["yes", "no"], **LINES),
        node("Sigmoid", ["scores"], ["y"]),
    ]
    compare(saved(tmp_path / "net.onnx", nodes, [port("y", FLOAT, ["n", 2])]), tmp_path / "out")


def test_all_labels_as_an_output(tmp_path: Path) -> None:
    """What skl2onnx writes for `output_class_labels`: no input decides it."""
    nodes = [
        node("LabelEncoder", ["every"], ["z"], domain=ML, keys_int64s=[0, 1], values_strings=["yes", "no"]),
        best,
        node("Gather", ["names", "best"], ["y"]),
    ]
    outputs = [port("y", STRING, ["n"]), port("z", STRING, [2])]
    compare(saved(tmp_path / "net.onnx", nodes, outputs, NAMES, every=np.array([0, 1])), tmp_path / "out")


def test_names_of_what_is_found(tmp_path: Path) -> None:
    """Values decide how many there are."""
    nodes = [
        node("Greater", ["x", "zero"], ["positive"]),
        node("NonZero", ["positive"], ["places"]),
        node("Gather", ["places", "one"], ["columns"], axis=0),
        node("Gather", ["names", "columns"], ["y"]),
    ]
    constants = {"zero": np.float32(0), "one": np.array(1)}
    path = saved(tmp_path / "net.onnx", nodes, [port("y", STRING, ["found"])], NAMES, **constants)
    artifact = compare(path, tmp_path / "out", output_room=10)
    assert artifact.manifest.outputs[0].room == 10


@pytest.mark.parametrize("case", ["numbers as text", "read by another", "no UTF-8"])
def test_what_is_no_label_is_refused_by_name(tmp_path: Path, case: str) -> None:
    texts: Any = NAMES
    nodes, outputs = [best, node("Gather", ["names", "best"], ["y"])], [port("y", STRING, ["n"])]
    if case == "numbers as text":
        nodes[1:] = [node("Cast", ["best"], ["y"], to=STRING)]
    elif case == "read by another":
        nodes.append(node("LabelEncoder", ["y"], ["z"], domain=ML, keys_strings=["no"], values_int64s=[1]))
        outputs.append(port("z", INT64, ["n"]))
    else:
        texts = np.array([b"\xff", b"a", b"b", b"c", b"d"], object)
    path = saved(tmp_path / "net.onnx", nodes, outputs, texts)
    with pytest.raises(ModelError, match=r"output 'y' (is text that does not|has labels that are not UTF-8)"):
        load_model(path, 4)
