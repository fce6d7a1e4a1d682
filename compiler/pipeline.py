"""From ONNX nodes to the layer graph: patterns with their epilogues, layouts, and generated code for the rest.

Nodes are visited in topological order. A node that has a kernel of its own becomes a layer and swallows the
element-wise nodes behind it; neighbouring nodes that have none are deferred (see `GraphBuilder`).
"""

from __future__ import annotations

from veltair.compiler.embedding.table_storage import TableStorage
from veltair.compiler.features.feature_model import FeatureModel
from veltair.compiler.graph.completion import complete_graph, complete_outputs
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.by_operator import find_matches, lower_nodes
from veltair.compiler.patterns.recommendation.feature_columns import round_columns


def lower(
    model: OnnxModel, precision: str, front: FeatureModel | None = None, tables: TableStorage | None = None
) -> LayerGraph:
    """Lower a loaded model. `precision` is "fp32" or "bf16". Raises ModelError naming what cannot be taken.

    front: what gives some of its inputs. tables: how rows of its float tables are kept; as they come by default.
    """
    view = find_matches(ModelView(front.model if front else model, precision))
    builder = GraphBuilder(view, tables or TableStorage())
    if front:
        builder.begin(front.layers)
    round_columns(view, builder)
    lower_nodes(view, builder)
    complete_outputs(view, builder)
    return complete_graph(view, builder, *((front.layout.inputs, front.layout.packed_buffers) if front else ()))
