"""Fits layers of feature columns to what reads them: rounded for products, joined for concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from veltair.compiler.features.kernel.columns_kernel import concatenated_layer
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.patterns.matmul import multiplies_in_bf16, readable_as_bf16


def round_columns(view: ModelView, builder: GraphBuilder) -> None:
    """Have columns that only products read written in bfloat16, if the products take it."""
    for spec in builder.layers:
        made = spec.outputs[0]
        if spec.op != "columns" or made.dtype != "float32" or made.name not in view.values:
            continue
        if multiplies_in_bf16(made.shape[0], view) and readable_as_bf16(made.name, view):
            builder.replace_layer(spec, replace(spec, outputs=(replace(made, dtype="uint16"),)))


def join_columns(
    node: onnx.NodeProto, pieces: Sequence[Activation], y: Activation, view: ModelView, builder: GraphBuilder
) -> bool:
    """Have the columns among the pieces (B, …) of a concatenation y, if nothing else reads them, write to their place
    in it and copy the other pieces to theirs. Of several columns' layers the widest does."""
    makers = {
        spec.outputs[0].name: spec
        for spec in builder.layers
        if spec.op == "columns" and view.only_user(spec.outputs[0].name) is node
    }
    own = max((piece for piece in pieces if piece.name in makers), key=lambda piece: piece.shape[1], default=None)
    if own is None or y.shape[0] != -1:
        return False
    maker, place = makers[own.name], pieces.index(own)
    builder.remove_layer(maker)
    builder.append(replace(concatenated_layer(maker, pieces[:place], pieces[place + 1 :], y), name=node.name))
    return True
