"""Types and shapes that ONNX's own inference tells of a file as it stands, before anything is computed."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from veltair.compiler.onnx.allowed_operators import STANDARD
from veltair.compiler.onnx.constants import type_name
from veltair.compiler.onnx.limits import KnownShapes
from veltair.compiler.onnx.simplify import describe_error
from veltair.errors import ModelError

# ONNX's inference ends the process at these where an input's type is not known, as behind trees of older operator sets.
CRASHING = frozenset({"DictVectorizer", "LabelEncoder", "EyeLike", "RegexFullMatch"})
# Operators beside the standard ones whose outputs it knows in every version.
TYPED = frozenset(
    {"ArrayFeatureExtractor", "Binarizer", "CategoryMapper", "LabelEncoder", "OneHotEncoder"}
)  # ONNX tells
SHAPE_BYTES = 4096  # constants up to here may decide shapes; larger ones are hidden from shape inference


def infer_shapes(proto: onnx.ModelProto, batch: int, path: Path, *, values_too: bool = True) -> KnownShapes:
    """What can be told at this batch size; without `values_too`, only what no computed value decides."""
    try:
        found = infer_outline(_outline(proto, batch), values_too=values_too)
    except Exception as error:  # ONNX raises whatever its checks raise
        raise ModelError(f"{path}: {describe_error(error)}") from None
    known: KnownShapes = {}
    for value in (*found.graph.value_info, *found.graph.output, *found.graph.input):
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor.HasField("shape"):
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
            if -1 not in dims:
                known[value.name] = (type_name(tensor.elem_type), tuple(dims))
    return known


def infer_outline(outline: onnx.ModelProto, *, values_too: bool) -> onnx.ModelProto:
    """ONNX's inference of a model that serves nothing else: it loses the nodes at which that may crash."""
    nodes = inferable(outline.graph)
    if len(nodes) < len(outline.graph.node):
        del outline.graph.node[:]
        outline.graph.node.extend(nodes)
    return onnx.shape_inference.infer_shapes(outline, data_prop=values_too)


def inferable(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes, without those at which ONNX's inference may crash: an input's type cannot be told there."""
    told = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    found = list[onnx.NodeProto]()
    for node in graph.node:
        known = told.issuperset(node.input)
        if known or node.op_type not in CRASHING:
            found.append(node)
        if known and (node.domain in STANDARD or node.op_type in TYPED):
            told.update(node.output)
    return found


def _outline(proto: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Return what shape inference needs: the batch set, large constants as inputs, no stated shapes."""
    graph, small = proto.graph, []
    inputs = {i.name: i for i in graph.input}
    for tensor in graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.ByteSize() <= SHAPE_BYTES:
            small.append(tensor)
        elif tensor.name not in inputs:
            inputs[tensor.name] = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    outputs = [o for o in graph.output if o.name not in inputs and o.name not in {t.name for t in graph.initializer}]
    outline = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions)
    outline.graph.CopyFrom(helper.make_graph(graph.node, graph.name or "g", inputs.values(), outputs, small))
    for dim in (dim for value in outline.graph.input for dim in value.type.tensor_type.shape.dim[:1]):
        if not dim.HasField("dim_value"):
            dim.dim_value = batch
    for value in outline.graph.output:
        value.type.tensor_type.ClearField("shape")
    return outline
