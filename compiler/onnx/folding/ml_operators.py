"""Operators of `ai.onnx.ml` around the networks of scikit-learn, and the standard ones that they are made of.

An operator that is not here, or has an option that is not, stays what it is and is left to ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from veltair.compiler.onnx.folding.expansion import Expansion, PartsOfNode
from veltair.compiler.onnx.node_evaluation import TensorType
from veltair.compiler.onnx.scikit_learn.class_scores import TRANSFORMS, add_best_class, add_probabilities
from veltair.compiler.onnx.scikit_learn.tree_classifier import tree_classifier

DOMAIN = "ai.onnx.ml"
MOST_KEYS = 256  # of an encoder of numbers, each of which is compared with every element
Types = Mapping[str, TensorType]  # of the node's inputs, as far as they are known


def expand_ml(node: onnx.NodeProto, types: Types) -> Expansion | None:
    """Standard nodes that make the outputs of a node under their names, and their constants; None where there are none.

    >>> node = onnx.helper.make_node("Binarizer", ["x"], ["y"], name="n", domain=DOMAIN, threshold=0.5)
    >>> kind = TensorType(onnx.TensorProto.FLOAT, (3,))
    >>> [each.op_type for each in expand_ml(node, {"x": kind})[0]]
    ['Greater', 'Cast']
    """
    if node.domain != DOMAIN or node.op_type not in _EXPANSIONS or node.input[0] not in types:
        return None
    parts = PartsOfNode(node)
    if not _EXPANSIONS[node.op_type](parts, types[node.input[0]]):
        return None
    return parts.nodes, parts.constants


def _floats(parts: PartsOfNode, kind: TensorType) -> str:
    """The first input as float32."""
    x = parts.input(0)
    return x if kind.kind == onnx.TensorProto.FLOAT else parts.add("Cast", [x], to=onnx.TensorProto.FLOAT)


def _scaler(parts: PartsOfNode, kind: TensorType) -> bool:
    offset, scale = (np.array(parts.given(name, []), np.float32) for name in ("offset", "scale"))
    if not offset.size or not scale.size:
        return False
    shifted = parts.add("Sub", [_floats(parts, kind), parts.array(offset)])
    parts.add("Mul", [shifted, parts.array(scale)], parts.fused.output[0])
    return True


def _imputer(parts: PartsOfNode, kind: TensorType) -> bool:
    """One value, or one for each column, in place of NaN or of a number."""
    suffix = {onnx.TensorProto.FLOAT: "float", onnx.TensorProto.INT64: "int64"}.get(kind.kind, "")
    dtype = np.float32 if suffix == "float" else np.int64
    values = np.array(parts.given(f"imputed_value_{suffix}s", []), dtype)
    if not suffix or not kind.shape or values.size not in (1, kind.shape[-1]):
        return False
    replaced = np.array(parts.given(f"replaced_value_{suffix}", 0), dtype)
    x = parts.input(0)
    missing = parts.add("IsNaN", [x]) if np.isnan(replaced) else parts.add("Equal", [x, parts.array(replaced)])
    parts.add("Where", [missing, parts.array(values), x], parts.fused.output[0])
    return True


def _label_encoder(parts: PartsOfNode, kind: TensorType) -> bool:
    """Numbers for int64 keys: those of the first key that an element is, or the default."""
    keys = np.array(parts.given("keys_int64s", []), np.int64)
    if kind.kind != onnx.TensorProto.INT64 or not 0 < keys.size <= MOST_KEYS:
        return False
    for suffix, dtype, default in (("int64", np.int64, -1), ("float", np.float32, -0.0)):
        values = parts.given(f"values_{suffix}s", [])
        if len(values) != keys.size:
            continue
        table = parts.array(np.array([*values, parts.given(f"default_{suffix}", default)], dtype))
        axis = parts.array(np.array([-1]))
        same = parts.add("Equal", [parts.add("Unsqueeze", [parts.input(0), axis]), parts.array(keys)])
        same = parts.add("Cast", [same], to=onnx.TensorProto.FLOAT)
        known = parts.add("Greater", [parts.add("ReduceSum", [same, axis], keepdims=0), parts.number(0.0)])
        first = parts.add("ArgMax", [same], axis=-1, keepdims=0)
        place = parts.add("Where", [known, first, parts.array(np.array(keys.size))])
        parts.add("Gather", [table, place], parts.fused.output[0], axis=0)
        return True
    return False


def _one_hot_encoder(parts: PartsOfNode, kind: TensorType) -> bool:
    """Ones at the category that an element is; an encoder that refuses what is none is not expanded."""
    categories = np.array(parts.given("cats_int64s", []), np.int64)
    if not categories.size or not parts.given("zeros", 1) or kind.kind == onnx.TensorProto.STRING:
        return False
    whole = parts.input(0)
    if kind.kind != onnx.TensorProto.INT64:
        whole = parts.add("Cast", [whole], to=onnx.TensorProto.INT64)
    element = parts.add("Unsqueeze", [whole, parts.array(np.array([-1]))])
    same = parts.add("Equal", [element, parts.array(categories)])
    parts.add("Cast", [same], parts.fused.output[0], to=onnx.TensorProto.FLOAT)
    return True


def _binarizer(parts: PartsOfNode, kind: TensorType) -> bool:
    if kind.kind != onnx.TensorProto.FLOAT:
        return False
    above = parts.add("Greater", [parts.input(0), parts.number(parts.given("threshold", 0.0))])
    parts.add("Cast", [above], parts.fused.output[0], to=onnx.TensorProto.FLOAT)
    return True


def _feature_extractor(parts: PartsOfNode, kind: TensorType) -> bool:
    """Elements of the last axis; those of a vector are a row."""
    if not kind.shape:
        return False
    flat = parts.add("Reshape", [parts.input(1), parts.array(np.array([-1]))])
    vector, output = len(kind.shape) == 1, parts.fused.output[0]
    found = parts.add("Gather", [parts.input(0), flat], "" if vector else output, axis=-1)
    if vector:
        parts.add("Unsqueeze", [found, parts.array(np.array([0]))], output)
    return True


def _normalizer(parts: PartsOfNode, kind: TensorType) -> bool:
    """Rows of zeros stay what they are."""
    norm = parts.given("norm", b"MAX")
    if norm not in (b"L1", b"L2") or not kind.shape:
        return False
    x, axis = _floats(parts, kind), parts.array(np.array([len(kind.shape) - 1]))
    summed = parts.add("Abs", [x]) if norm == b"L1" else parts.add("Mul", [x, x])
    length = parts.add("ReduceSum", [summed, axis], keepdims=1)
    if norm == b"L2":
        length = parts.add("Sqrt", [length])
    zero = parts.add("Equal", [length, parts.number(0.0)])
    parts.add("Div", [x, parts.add("Where", [zero, parts.number(1.0), length])], parts.fused.output[0])
    return True


def _scores(parts: PartsOfNode, kind: TensorType, rows: int, output: str = "") -> str:
    """x @ coefficients^T + intercepts; "" where they do not fit."""
    weights, bias = (np.array(parts.given(name, []), np.float32) for name in ("coefficients", "intercepts"))
    if not kind.shape or len(kind.shape) != 2 or weights.size != rows * kind.shape[1] or bias.size not in (0, rows):
        return ""
    matrix = parts.array(np.ascontiguousarray(weights.reshape(rows, -1).T))
    product = parts.add("MatMul", [_floats(parts, kind), matrix], "" if bias.size else output)
    return parts.add("Add", [product, parts.array(bias)], output) if bias.size else product


def _linear_regressor(parts: PartsOfNode, kind: TensorType) -> bool:
    if parts.given("post_transform", b"NONE") != b"NONE":
        return False
    return bool(_scores(parts, kind, parts.given("targets", 1), parts.fused.output[0]))


def _linear_classifier(parts: PartsOfNode, kind: TensorType) -> bool:
    """Expand a classifier of two classes or more, each with coefficients of its own and a number for a label."""
    labels, after = np.array(parts.given("classlabels_ints", []), np.int64), parts.given("post_transform", b"NONE")
    if labels.size < 2 or after not in TRANSFORMS:
        return False
    scores = _scores(parts, kind, labels.size)
    if not scores:
        return False
    add_best_class(parts, scores, labels)
    add_probabilities(parts, scores, after)
    return True


_EXPANSIONS: dict[str, Callable[[PartsOfNode, TensorType], bool]] = {
    "Scaler": _scaler,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "OneHotEncoder": _one_hot_encoder,
    "Binarizer": _binarizer,
    "ArrayFeatureExtractor": _feature_extractor,
    "Normalizer": _normalizer,
    "LinearRegressor": _linear_regressor,
    "LinearClassifier": _linear_classifier,
    "TreeEnsembleClassifier": tree_classifier,
}
