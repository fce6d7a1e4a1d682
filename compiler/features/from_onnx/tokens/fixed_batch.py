"""Graphs whose inputs fix the batch: it becomes symbolic, since columns are for a batch that requests choose."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from veltair.compiler.onnx.node_attributes import attribute

MOST_DIMS = 16  # of a tensor's shape


def open_batch(proto: onnx.ModelProto) -> int | None:
    """Makes the first dimension of all inputs symbolic where each fixes it to the same number, in place.

    Shapes that the graph spells out begin with that number, too. Returns it; None where the graph stays as it is.
    """
    graph = proto.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    firsts = [next(iter(value.type.tensor_type.shape.dim), None) for value in inputs]
    batches = {dim.dim_value if dim is not None and dim.HasField("dim_value") else 0 for dim in firsts}
    batch = batches.pop() if len(batches) == 1 else 0
    if batch < 1:
        return None
    of_inputs = {value.name for value in inputs}
    for node in graph.node:
        if node.op_type == "Shape" or of_inputs.isdisjoint(node.input):
            continue
        of_inputs.update(node.output)
        if node.op_type == "Reshape" and node.input[0] in of_inputs:
            _open_shape(node, graph, weights, batch)
    for value in (*inputs, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value == batch:
            dims[0].dim_param = "batch"
    del graph.value_info[:]
    return batch


def _open_shape(node: onnx.NodeProto, graph: onnx.GraphProto, weights: dict[str, onnx.TensorProto], batch: int) -> None:
    """Leaves the first extent open of a shape that begins with the batch."""
    tensor = weights.get(node.input[1])
    if tensor is None:
        maker = next((other for other in graph.node if node.input[1] in other.output), None)
        tensor = attribute(maker, "value", None) if maker is not None and maker.op_type == "Constant" else None
    if tensor is None or sum(tensor.dims) > MOST_DIMS:
        return
    shape = numpy_helper.to_array(tensor).copy()
    if shape.size == 0 or shape[0] != batch:
        return
    shape[0] = 0 if (shape[1:] == -1).any() else -1  # the first extent of what is reshaped, or what is left
    name = f"{node.output[0]}/shape of any batch"
    graph.initializer.append(numpy_helper.from_array(shape, name))
    node.input[1] = name
