"""Blocks of a computed tensor by constant ids: Gather along any axis whose rows are long, as in BigBird's attention."""

from __future__ import annotations

from onnx import NodeProto

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.recommendation import BlockGatherParameters
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.compiler.patterns.recommendation.constant_ids import checked_ids

LEAST_DIM = 64  # numbers of a block: shorter ones are left to generated code


def block_gather(node: NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Emit "block_gather". Raises ModelError for an id of no block."""
    ids, x = view.constants.get(node.input[1]), view.values[node.input[0]]
    axis = attribute(node, "axis", 0) % max(len(x.shape), 1)
    if node.input[0] in view.constants or ids is None or ids.ndim != 1 or len(ids) < 2 or x.dtype != "float32":
        return False
    outer, blocks, dim = product_of(x.shape[:axis]), x.shape[axis], product_of(x.shape[axis + 1 :])
    if blocks < 1 or dim < LEAST_DIM or not outer:
        return False
    picked = checked_ids(ids, blocks, node.name, f"{blocks} blocks along axis {axis}", "found")
    dense = builder.reshape(builder.to_row_major(node.input[0]), (outer * blocks, dim))
    shape = view.shape_of(node.output[0])
    y = Activation(f"{node.output[0]}/blocks", "float32", (outer * len(ids), dim))
    parameters = BlockGatherParameters(picked=len(ids), blocks=blocks)
    builder.emit(node.name, "block_gather", [dense], [y], parameters, {"ids": picked})
    builder.alias(Activation(node.output[0], "float32", shape), y.name)
    return True
