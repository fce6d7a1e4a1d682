"""Reads ONNX's label encoders: which keys lead to which values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.onnx.node_attributes import attribute

ENCODERS = ("LabelEncoder", "CategoryMapper")
TEXT_KEYS = ("keys_strings", "cats_strings")


@dataclass(frozen=True, slots=True)
class KeyEncoding:
    """The table of an encoder.

    >>> KeyEncoding(("a", "b"), np.array([0, 1, -1])).keys
    ('a', 'b')
    """

    keys: tuple[str | int, ...]
    values: NDArray[Any]  # int64 or float32: one for each key, and the last for any other


def encodes_features(node: onnx.NodeProto, graph: OnnxGraphIndex) -> bool:
    """Whether a node is an encoder of text, or of an input's numbers; those that nodes compute, or the file holds, are
    no feature."""
    if node.op_type not in ENCODERS:
        return False
    if any(attribute(node, name, []) for name in TEXT_KEYS):
        return True
    tensor = attribute(node, "keys_tensor", None)
    if tensor is not None and tensor.data_type == onnx.TensorProto.STRING:
        return True
    name = node.input[0]
    while (before := graph.producer.get(name)) is not None and before.op_type in VIEWS:
        name = before.input[0]
    return before is None and name not in graph.weights


def read_encoding(node: onnx.NodeProto) -> KeyEncoding:
    """The table of a LabelEncoder or CategoryMapper. Raises ValueError that says what is not supported."""
    if node.op_type == "CategoryMapper":
        texts, numbers = attribute(node, "cats_strings", []), attribute(node, "cats_int64s", [])
        return _checked_encoding(
            [_decode_key(key) for key in texts], np.array(numbers, np.int64), attribute(node, "default_int64", -1)
        )
    keys = _read_list(node, "keys", "strings", "int64s")
    values = np.asarray(_read_list(node, "values", "int64s", "floats"))
    if values.dtype.kind not in "if":
        raise ValueError("it gives strings; expected int64 or float32")
    whole = values.dtype.kind == "i"
    default = attribute(node, "default_int64", -1) if whole else attribute(node, "default_float", -0.0)
    tensor = attribute(node, "default_tensor", None)
    if tensor is not None:
        default = _read_tensor(tensor).reshape(-1)[0]
    named = [int(key) if isinstance(key, int | np.integer) else _decode_key(key) for key in keys]
    return _checked_encoding(named, values.astype(np.int64 if whole else np.float32), default)


def _checked_encoding(keys: list[Any], values: NDArray[Any], default: Any) -> KeyEncoding:
    if not keys or len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys, {len(values)} values")
    if len(set(keys)) < len(keys):
        raise ValueError("a key appears twice")
    return KeyEncoding(tuple(keys), np.append(values, values.dtype.type(default)))


def _read_list(node: onnx.NodeProto, role: str, *kinds: str) -> list[Any]:
    tensor = attribute(node, f"{role}_tensor", None)
    if tensor is not None:
        return list(_read_tensor(tensor).reshape(-1).tolist())
    found: list[Any] = next((f for kind in kinds if (f := attribute(node, f"{role}_{kind}", []))), [])
    if not found:
        raise ValueError(f"expected {role} in {' or '.join(f'{role}_{kind}' for kind in kinds)}")
    return found


def _read_tensor(tensor: onnx.TensorProto) -> NDArray[Any]:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError("keys and values lie in the file, not beside it")
    array: NDArray[Any] = np.asarray(numpy_helper.to_array(tensor))
    if array.dtype.kind not in "ifOSU":
        raise ValueError(f"{tensor.name or 'a tensor'} is {array.dtype}")
    return array


def _decode_key(key: Any) -> str:
    if not isinstance(key, bytes | str):
        raise ValueError(f"the key {key!r} is neither text nor a whole number")
    return key.decode("utf-8") if isinstance(key, bytes) else key
