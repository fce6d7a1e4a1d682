"""Operators between an encoder and its lookup: found, and carried out on all ids when the model is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex

ARITHMETIC = ("Add", "Sub", "Mul", "Mod", "Abs", "Neg", "Clip", "Max", "Min", "Where", "Cast")
LOGIC = ("And", "Or", "Not", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal")
NUMERIC = (*ARITHMETIC, *LOGIC)


def find_encoder(
    lookup: onnx.NodeProto, graph: OnnxGraphIndex, encoders: Sequence[str]
) -> tuple[onnx.NodeProto, list[onnx.NodeProto]]:
    """The encoder that a lookup's ids come from, and the operators on numbers between, in graph order.

    `encoders`: names of the nodes that count as one. Raises ModelError for any other way to the lookup.
    """
    between: dict[str, onnx.NodeProto] = {}
    found: dict[str, onnx.NodeProto] = {}
    names = [lookup.input[1]]
    while names:
        name = names.pop()
        node = graph.producer.get(name)
        if node is None or node.op_type == "Constant":
            if name and graph.constant(name) is None:
                raise graph.error(lookup, f"ids depend on {name!r} beside encoded keys")
        elif node.name in encoders:
            found[node.name] = node
        elif node.op_type not in (*NUMERIC, *VIEWS):
            raise graph.error(node, f"stands between an encoder and the lookup {lookup.name!r}")
        elif node.name not in between:
            between[node.name] = node
            names += node.input[:1] if node.op_type in VIEWS else node.input
    if len(found) != 1:
        raise graph.error(lookup, f"ids come from {len(found)} encoders; expected one")
    return next(iter(found.values())), [node for node in graph.nodes if node.name in between]


def apply_operators(
    nodes: Sequence[onnx.NodeProto], source: str, wanted: str, ids: NDArray[Any], graph: OnnxGraphIndex
) -> NDArray[np.int64]:
    """What the operators make of ids on their way from the tensor `source` to the tensor `wanted`.

    Views change no value, and constants hold for all ids. Raises ModelError for operators that ONNX Runtime refuses.
    """
    chosen, last = _without_views(nodes, source, wanted)
    if not chosen:
        return ids.astype(np.int64)
    kind = helper.np_dtype_to_tensor_dtype(ids.dtype)
    inputs = [helper.make_tensor_value_info(source, kind, [len(ids)])]
    outputs = [helper.make_value_info(last, onnx.TypeProto())]
    small = helper.make_graph(chosen, "ids", inputs, outputs, _constants(chosen, graph))
    model = helper.make_model(small, opset_imports=graph.opsets, ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {source: ids})[0]).astype(np.int64)
    except Exception as error:  # ONNX Runtime raises its own types
        what = f"cannot be carried out on ids: {' '.join(str(error).split())[:200]}"
        raise graph.error(chosen[0], what) from None


def _without_views(nodes: Sequence[onnx.NodeProto], source: str, wanted: str) -> tuple[list[onnx.NodeProto], str]:
    """Copies of the nodes that compute, as if views were not there, and the name of the tensor that they end in."""
    behind, chosen = {source: source}, []
    for node in nodes:
        if node.op_type in VIEWS:
            behind[node.output[0]] = behind.get(node.input[0], node.input[0])
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [behind.get(name, name) for name in node.input]
        chosen.append(copy)
    return chosen, behind.get(wanted, wanted)


def _constants(nodes: Sequence[onnx.NodeProto], graph: OnnxGraphIndex) -> list[onnx.TensorProto]:
    found: dict[str, onnx.TensorProto] = {}
    for node in nodes:
        for name in filter(None, node.input):
            value = graph.constant(name)
            if value is not None and value.size != 1:
                raise graph.error(node, f"{name!r} has {value.size} values; expected one for all ids")
            if value is not None:
                found[name] = numpy_helper.from_array(value.reshape(()), name)
    return list(found.values())
