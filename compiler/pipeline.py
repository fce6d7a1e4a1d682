"""From ONNX nodes to layers: anchors with their epilogues, layouts, and generic regions for the rest.

Nodes are visited in topological order. A node that has a kernel of its own becomes a layer and swallows the
element-wise nodes behind it; neighbouring nodes that have none wait in a region (see `lowering`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import onnx

from veltair.compiler.embedding.table_storage import Tables
from veltair.compiler.features.feature_model import Front
from veltair.compiler.graph.layer_graph import Graph
from veltair.compiler.graph.lowering import Lowering
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.batch_norm import find_norms
from veltair.compiler.patterns.batched_matmul import batched_matmul, find_products
from veltair.compiler.patterns.concat import concat
from veltair.compiler.patterns.elementwise import elementwise
from veltair.compiler.patterns.layer_norm import layer_norm
from veltair.compiler.patterns.matmul import matmul
from veltair.compiler.patterns.recommendation.embedding_bags import bags
from veltair.compiler.patterns.recommendation.feature_columns import round_columns
from veltair.compiler.patterns.recommendation.lookups import find_lookups, lookups
from veltair.compiler.patterns.recommendation.sums import find_sums, sums
from veltair.compiler.patterns.sequence.attention import attention, find_attention, projections
from veltair.compiler.patterns.sequence.recurrent import find_recurrences, recurrent
from veltair.compiler.patterns.sequence.token_embedding import embedding, find_embeddings
from veltair.compiler.patterns.views import view
from veltair.compiler.patterns.vision.channel_norms import l2_normalize, lrn
from veltair.compiler.patterns.vision.channels_last import channels_last
from veltair.compiler.patterns.vision.conv import conv
from veltair.compiler.patterns.vision.pool import global_pool, pool
from veltair.compiler.patterns.vision.squeeze_excite import squeeze_excite

Anchor: TypeAlias = Callable[[onnx.NodeProto, Lowering], bool]  # emits layers and returns True, or declines

# The first that takes a node has it.
ANCHORS: Mapping[str, tuple[Anchor, ...]] = {
    "Conv": (conv,),
    "MaxPool": (pool,),
    "AveragePool": (pool,),
    "GlobalAveragePool": (squeeze_excite, global_pool),
    "ReduceMean": (sums, lookups, global_pool),
    "ReduceSum": (sums, lookups),
    "OneHot": (sums,),
    "Gemm": (sums, matmul, batched_matmul),
    "MatMul": (sums, projections, attention, matmul, batched_matmul),
    "LayerNormalization": (embedding, layer_norm),
    "Gather": (bags,),
    "Neg": (lookups,),
    "Concat": (sums, concat),
    "GRU": (recurrent,),
    "Scan": (recurrent,),
    "Add": (elementwise,),
    **dict.fromkeys(("Sum", "Sub", "Mul", "Div", "BatchNormalization"), (elementwise,)),
    **dict.fromkeys(("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Tanh", "Gelu"), (elementwise,)),
    **dict.fromkeys(("Sigmoid", "HardSigmoid", "HardSwish"), (elementwise,)),
    "LRN": (lrn,),
    "ReduceL2": (l2_normalize,),
    "Transpose": (channels_last,),
    "Reshape": (channels_last, view),
    "Flatten": (view,),
    "Squeeze": (view,),
    "Unsqueeze": (view,),
    "Identity": (view,),
    "Dropout": (view,),
}


# Searched for before the first node is visited.
PATTERNS = (
    find_recurrences, find_sums, find_lookups, find_embeddings, find_norms, find_attention, find_products,
    round_columns,
)  # fmt: skip


def lower(model: OnnxModel, precision: str, front: Front | None = None, tables: Tables | None = None) -> Graph:
    """Lower a loaded model. `precision` is "fp32" or "bf16". Raises ModelError naming what cannot be taken.

    front: what gives some of its inputs. tables: how rows of its float tables are kept; as they come by default.
    """
    lowering = Lowering(front.model if front else model, precision, tables or Tables())
    if front:
        lowering.begin(front.layers, front.layout)
    for find in PATTERNS:
        find(lowering)
    for node in model.nodes:
        if id(node) not in lowering.done and not any(a(node, lowering) for a in ANCHORS.get(node.op_type, ())):
            lowering.region.append(node)
    return lowering.graph()
