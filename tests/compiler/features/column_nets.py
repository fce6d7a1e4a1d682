"""Helpers of the tests: ONNX models that look up strings and numbers in tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ML = "ai.onnx.ml"
CONTRIB = "ai.onnx.contrib"
CHANCE = np.random.default_rng(0)
CITIES = CHANCE.standard_normal((5, 4)).astype(np.float32)
ITEMS = np.concatenate([CHANCE.standard_normal((6, 3)), np.zeros((1, 3))]).astype(np.float32)  # the last is padding
CONSTANTS = {
    "cities": CITIES,
    "items": ITEMS,
    "one": np.array([1]),
    "three": np.array([3]),
    "five": np.array([5]),
    "many": np.array([1 << 20]),
    "none": np.array([0]),
    "two": np.array(2),
    "zero": np.array(0),
    "top": np.array(4),
    "flat": np.array([-1]),
    "least": np.array(1.0, np.float32),
    "dash": np.array(["-"], object),
    "edges": np.array([[2.0, -1.0, 0.0, 0.0]], np.float32),
    "few": np.array([0.5], np.float32),
}
Inputs = Mapping[str, tuple[int, Sequence[Any]]]


def node(op: str, given: Sequence[str], out: Sequence[str] | str, **attributes: Any) -> onnx.NodeProto:
    outs = [out] if isinstance(out, str) else list(out)
    return helper.make_node(op, given, outs, outs[0], **attributes)


def encoder(given: str, out: str, keys: Sequence[str], values: Sequence[int], default: int) -> onnx.NodeProto:
    given_keys = {"keys_strings": keys, "values_int64s": values, "default_int64": default}
    return node("LabelEncoder", [given], out, domain=ML, **given_keys)


def hashed(given: str, out: str, buckets: str) -> onnx.NodeProto:
    return node("StringToHashBucketFast", [given, buckets], out, domain=CONTRIB)


def model(path: Path, nodes: Sequence[onnx.NodeProto], inputs: Inputs, outputs: Sequence[str], opset: int = 20) -> Path:
    listed = [helper.make_tensor_value_info(name, kind, list(shape)) for name, (kind, shape) in inputs.items()]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    used = {name for n in nodes for name in n.input}
    weights = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items() if name in used]
    graph = helper.make_graph(nodes, "g", listed, outs, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, 4), helper.make_opsetid(CONTRIB, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


CITY = [
    encoder("city", "city.id", ["Rome", "", "Oslo"], [3, 1, 0], -1),  # -1 is the last row
    node("Gather", ["cities", "city.id"], "city.rows"),
]
HISTORY = [
    node("StringSplit", ["history"], ["tokens", "counts"], delimiter=";"),
    encoder("tokens", "token.id", ["a", "b", "cc"], [2, 0, 5], 6),
    node("Gather", ["items", "token.id"], "token.rows"),
    node("ReduceSum", ["token.rows", "one"], "summed", keepdims=0),
]
MEAN = [
    node("Cast", ["counts"], "counted", to=TensorProto.FLOAT),
    node("Max", ["counted", "least"], "some"),
    node("Unsqueeze", ["some", "one"], "divisor"),
    node("Div", ["summed", "divisor"], "mean"),
]
STRING, INT = TensorProto.STRING, TensorProto.INT64
