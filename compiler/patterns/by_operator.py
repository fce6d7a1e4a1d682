"""Which pattern takes which ONNX node: the patterns of each operator, and the searches for groups of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.onnx.folding.row_numbers import ROWS
from veltair.compiler.onnx.scikit_learn.tree_ensemble import ENSEMBLE, REGRESSOR
from veltair.compiler.patterns.batch_norm import find_batch_norms
from veltair.compiler.patterns.batched_matmul import batched_matmul, find_batched_matmuls
from veltair.compiler.patterns.concat import concat
from veltair.compiler.patterns.constant_rows import constant_rows
from veltair.compiler.patterns.elementwise import elementwise
from veltair.compiler.patterns.layer_norm import layer_norm
from veltair.compiler.patterns.matmul import matmul
from veltair.compiler.patterns.quantised.boundaries import dequantise, dynamic_quantise, quantise
from veltair.compiler.patterns.quantised.find import find_quantised_layers
from veltair.compiler.patterns.quantised.pools import max_pool, plane_mean
from veltair.compiler.patterns.quantised.products import quantised_product
from veltair.compiler.patterns.quantised.step_pairs import join_steps, step_pair
from veltair.compiler.patterns.quantised.step_tables import step_table
from veltair.compiler.patterns.recommendation.block_gathers import block_gather
from veltair.compiler.patterns.recommendation.embedding_bags import embedding_bag
from veltair.compiler.patterns.recommendation.lookups import find_lookups, lookups
from veltair.compiler.patterns.recommendation.neighbour_sums import find_neighbour_sums, neighbour_sum
from veltair.compiler.patterns.recommendation.sums import find_sums, sums
from veltair.compiler.patterns.sequence.attention import attention, find_attention, projections
from veltair.compiler.patterns.sequence.recurrent import find_recurrences, recurrent
from veltair.compiler.patterns.sequence.token_embedding import embedding, find_token_embeddings
from veltair.compiler.patterns.transpose import transpose
from veltair.compiler.patterns.trees import trees
from veltair.compiler.patterns.views import alias
from veltair.compiler.patterns.vision.channel_norms import l2_normalize, lrn
from veltair.compiler.patterns.vision.channels_first import channels_first
from veltair.compiler.patterns.vision.channels_last import channels_last
from veltair.compiler.patterns.vision.conv import conv
from veltair.compiler.patterns.vision.depth_to_space import depth_to_space
from veltair.compiler.patterns.vision.group_norm import group_norm
from veltair.compiler.patterns.vision.picked_pixels import pick_pixels
from veltair.compiler.patterns.vision.pool import global_pool, pool
from veltair.compiler.patterns.vision.resize import resize
from veltair.compiler.patterns.vision.squeeze_excite import squeeze_excite
from veltair.errors import ModelError

Pattern: TypeAlias = Callable[[onnx.NodeProto, ModelView, GraphBuilder], bool]  # emits layers, or returns False
Finder: TypeAlias = Callable[[ModelView], Matches]

# The first pattern of an operator that takes a node has it.
PATTERNS: Mapping[str, tuple[Pattern, ...]] = {
    "QuantizeLinear": (max_pool, plane_mean, step_table, step_pair, quantise),
    "DequantizeLinear": (dequantise,),
    "DynamicQuantizeLinear": (dynamic_quantise,),
    "Conv": (conv,),
    "MaxPool": (max_pool, pool),
    "AveragePool": (pool,),
    "GlobalAveragePool": (squeeze_excite, global_pool),
    "ReduceMean": (sums, lookups, squeeze_excite, global_pool),
    "ReduceSum": (sums, lookups),
    "OneHot": (sums,),
    "Gemm": (sums, matmul, batched_matmul),
    "MatMul": (sums, projections, attention, matmul, batched_matmul),
    "LayerNormalization": (embedding, group_norm, layer_norm),
    "Gather": (embedding_bag, block_gather),
    "Neg": (lookups,),
    "Concat": (sums, join_steps, concat),
    **dict.fromkeys(("GRU", "LSTM", "RNN", "Scan"), (recurrent,)),
    "Add": (elementwise,),
    **dict.fromkeys(("Sum", "Sub", "Mul", "Div", "BatchNormalization"), (elementwise,)),
    **dict.fromkeys(("Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Tanh", "Gelu"), (elementwise,)),
    **dict.fromkeys(("Sigmoid", "HardSigmoid", "HardSwish"), (elementwise,)),
    **dict.fromkeys(("ScatterND", "ScatterElements"), (neighbour_sum,)),
    "LRN": (lrn,),
    "ReduceL2": (l2_normalize,),
    "Transpose": (channels_last, channels_first, transpose),
    "DepthToSpace": (depth_to_space,),
    **dict.fromkeys(("Slice", "Pad"), (pick_pixels,)),
    "Resize": (pick_pixels, resize),
    "Reshape": (group_norm, channels_last, alias),
    "Flatten": (alias,),
    "Squeeze": (lookups, alias),
    "Unsqueeze": (alias,),
    "Identity": (alias,),
    "Dropout": (alias,),
    ROWS: (constant_rows,),
    **dict.fromkeys((REGRESSOR, ENSEMBLE), (trees,)),
}

# Searches for groups of nodes that are one layer. Each gets the matches of those before it.
FINDERS: tuple[Finder, ...] = (
    find_quantised_layers,
    find_recurrences,
    find_sums,
    find_lookups,
    find_neighbour_sums,
    find_token_embeddings,
    find_batch_norms,
    find_attention,
    find_batched_matmuls,
)


def find_matches(view: ModelView) -> ModelView:
    """The view with all groups of nodes that are one layer."""
    for find in FINDERS:
        view = replace(view, matches=view.matches.union(find(view)))
    return view


def lower_nodes(view: ModelView, builder: GraphBuilder, refused: dict[str, str] | None = None) -> None:
    """Visit the nodes in order: emit the layers of those that a pattern takes, defer the others.

    refused: takes the nodes that a pattern refuses, by name, and why; they are deferred. Without it, that is a
    ModelError.
    """
    for node in view.nodes:
        if builder.is_taken(node):
            continue
        try:
            if any(pattern(node, view, builder) for pattern in (quantised_product, *PATTERNS.get(node.op_type, ()))):
                continue
        except ModelError as error:
            if refused is None:
                raise
            for inner in view.matches.inner_of(node):
                refused[inner.name] = str(error)
                builder.defer(inner)
            refused[node.name] = str(error)
        builder.defer(node)
