"""Operators of scikit-learn's pipelines become standard ones, which our kernels compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx_nets import normal
from onnx_nets import run as run_layers

from veltair.compiler.onnx.folding.ml_operators import DOMAIN
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

FEATURES, CLASSES = 5, 3
Made = tuple[str, list[str], dict[str, Any]]  # operator, outputs, attributes
WEIGHTS = {"coefficients": normal(CLASSES * FEATURES).tolist(), "intercepts": normal(CLASSES).tolist()}
LABELS = {"classlabels_ints": [7, 3, 9], "multi_class": 1}


def made(op: str, *outputs: str, **attributes: Any) -> Made:
    return op, list(outputs or ("y",)), attributes


NODES = {
    "scaler": made("Scaler", offset=normal(FEATURES).tolist(), scale=normal(FEATURES).tolist()),
    "scaler of one number": made("Scaler", offset=[0.5], scale=[2.0]),
    "binarizer": made("Binarizer", threshold=0.25),
    "imputer": made("Imputer", imputed_value_floats=normal(FEATURES).tolist(), replaced_value_float=float("nan")),
    "imputer of zeros": made("Imputer", imputed_value_floats=[0.5], replaced_value_float=0.0),
    "L1": made("Normalizer", norm="L1"),
    "L2": made("Normalizer", norm="L2"),
    "regressor": made("LinearRegressor", targets=CLASSES, **WEIGHTS),
    **{
        after: made("LinearClassifier", "label", "y", post_transform=after, **WEIGHTS, **LABELS)
        for after in ("NONE", "SOFTMAX", "LOGISTIC")
    },
}


def saved(path: Path, *nodes: onnx.NodeProto, constants: Any = (), **outputs: int) -> Path:
    shapes = {TensorProto.INT64: ["n"], TensorProto.FLOAT: ["n", CLASSES if "label" in outputs else None]}
    ports = [helper.make_tensor_value_info(name, kind, shapes[kind]) for name, kind in outputs.items()]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])
    graph = helper.make_graph(list(nodes), "net", [given], ports, list(constants))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def compare(path: Path, *, has_nan: bool = False) -> None:
    x = normal(4, FEATURES)
    x[2] = 0
    x[3] = [7, 4, -2, 2.5, np.nan] if has_nan else [7, 4, -2, 2.5, 3]
    expected = ort.InferenceSession(str(path)).run(None, {"x": x})
    found, operators = run_layers(path, {"x": x}, "fp32", batch=4)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert "onnxruntime" not in operators


@pytest.mark.parametrize("name", NODES)
def test_an_operator_runs_on_our_kernels(tmp_path: Path, name: str) -> None:
    op, outputs, attributes = NODES[name]
    node = helper.make_node(op, ["x"], outputs, name="n", domain=DOMAIN, **attributes)
    kinds = {out: TensorProto.INT64 if out == "label" else TensorProto.FLOAT for out in outputs}
    compare(saved(tmp_path / "net.onnx", node, **kinds), has_nan=op == "Imputer")


ENCODERS = {
    "numbers": made("LabelEncoder", keys_int64s=[7, -2, 7, 4], values_floats=[0.5, 2, 3, -1], default_float=9.0),
    "labels": made("LabelEncoder", keys_int64s=[4, 7], values_int64s=[1 << 40, -3]),
    "ones": made("OneHotEncoder", cats_int64s=[0, -2, 4, 2], zeros=1),
    "imputer": made("Imputer", imputed_value_int64s=[1, 2, 3, 4, 5], replaced_value_int64=0),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_of_whole_numbers(tmp_path: Path, name: str) -> None:
    op, outputs, attributes = ENCODERS[name]
    kind = TensorProto.INT64 if name in ("labels", "imputer") else TensorProto.FLOAT
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
        helper.make_node(op, ["whole"], outputs, name="n", domain=DOMAIN, **attributes),
    ]
    path = saved(tmp_path / "net.onnx", *nodes, **{outputs[0]: kind})
    proto = onnx.load(path)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, path)
    compare(path)


def test_labels_are_looked_up_as_a_classifier_of_skl2onnx_does(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, name="best"),
        helper.make_node("ArrayFeatureExtractor", ["labels", "best"], ["found"], domain=DOMAIN, name="found"),
        helper.make_node("Reshape", ["found", "flat"], ["y"], name="y"),
    ]
    labels = helper.make_tensor("labels", TensorProto.INT64, [FEATURES], [4, 1, 8, 2, 0])
    flat = helper.make_tensor("flat", TensorProto.INT64, [1], [-1])
    compare(saved(tmp_path / "net.onnx", *nodes, constants=[labels, flat], y=TensorProto.INT64))


def test_an_option_that_is_not_known_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    node = helper.make_node("Normalizer", ["x"], ["y"], name="n", domain=DOMAIN, norm="MAX")
    graph = lower(load_model(saved(tmp_path / "net.onnx", node, y=TensorProto.FLOAT), 4), "fp32")
    assert [layer.op for layer in graph.layers] == ["onnxruntime"]
