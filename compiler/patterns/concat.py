"""Concatenation.

At batch 1 every producer writes straight into its slice of the whole, and no layer is left. Rows of a batch are copied
side by side, by the layer of feature columns where it makes some of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_graph import Slice
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.compiler.patterns.matmul import multiplies_in_bf16, readable_as_bf16
from veltair.compiler.patterns.recommendation.feature_columns import join_columns
from veltair.profiles.artifact.manifest import ALIGNMENT


def concat(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Concat on channels of blocked tensors, or on any axis of row-major ones."""
    rank = len(view.shape_of(node.output[0]))
    if _concat_batch_rows(node, attribute(node, "axis", 0) % rank, view, builder):
        return True
    if attribute(node, "axis", 0) % rank != 1 or not all(map(builder.is_made, node.input)):
        return False
    pieces = [builder.tensors[name] for name in node.input]
    if any(piece.block and piece.dtype != view.dtype for piece in pieces):  # steps, with their channels last
        return False
    if rank == 4 and any(piece.block for piece in pieces):
        return _concat_channels(node, view, builder)
    return _place_rows(node, view, builder, pieces)


def _concat_batch_rows(node: onnx.NodeProto, axis: int, view: ModelView, builder: GraphBuilder) -> bool:
    """Copies rows of a batch side by side, in bfloat16 where the readers want that."""
    output = node.output[0]
    shape = view.shape_of(output)
    rows, width = product_of(shape[:axis]), product_of(shape[axis:])
    numbers = all(name not in view.constants and view.values[name].dtype == "float32" for name in node.input)
    if rows >= 0 or not numbers or any(builder.is_made(n) and builder.tensors[n].block for n in node.input):
        return False
    pieces = [builder.rows(name) for name in node.input]
    narrow = multiplies_in_bf16(rows, view) and readable_as_bf16(output, view)
    y = Activation(output, "uint16" if narrow else "float32", (rows, width))
    whole = replace(y, shape=shape)
    if shape != y.shape:
        y = replace(y, name=f"{output}/rows")
    inputs = [builder.reshape(piece, (rows, product_of(piece.shape[axis:]))) for piece in pieces]
    if not join_columns(node, inputs, y, view, builder):
        builder.emit(node.name, "concat_rows", inputs, [y])
    if shape != y.shape:
        builder.alias(whole, y.name)
    return True


def _concat_channels(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Concatenates blocked tensors.

    A piece that cannot be made in place (its channels begin within a block, or it lies in another tensor's memory) is
    copied, by one layer for each run of such pieces.
    """
    pieces = [builder.to_blocked(name) for name in node.input]
    if any(piece.block != view.block for piece in pieces):
        return False
    shape = view.shape_of(node.output[0])
    whole = Activation(node.output[0], view.dtype, shape, view.block)
    copied: list[Activation] = []
    start = first = 0  # channels before the piece, and before the pieces in `copied`
    for i, piece in enumerate(pieces):
        fits = start % view.block == 0 and (piece.shape[1] % view.block == 0 or i == len(pieces) - 1)
        where = Slice(whole.name, start // view.block)
        if copied or shape[0] != 1 or not fits or not builder.place(piece.name, where):
            copied.append(piece)
        start += piece.shape[1]
        if copied and (i == len(pieces) - 1 or (start % view.block == 0 and shape[0] == 1)):
            _copy_pieces(node, builder, copied, whole, first)
            copied = []
        if not copied:
            first = start
    builder.add_whole(whole)
    return True


def _copy_pieces(
    node: onnx.NodeProto, builder: GraphBuilder, pieces: list[Activation], whole: Activation, first: int
) -> None:
    """Emits a layer that copies the pieces into the whole, from its channel `first` on."""
    channels = sum(piece.shape[1] for piece in pieces)
    target = whole
    if channels != whole.shape[1]:
        name = f"{whole.name}/{first}"
        target = replace(whole, name=name, shape=(whole.shape[0], channels, *whole.shape[2:]))
        builder.place_new(name, Slice(whole.name, first // whole.block))
    builder.emit(f"{node.name}/{first}", "concat", pieces, [target])


def _place_rows(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder, pieces: list[Activation]) -> bool:
    """Row-major tensors at batch 1, if every piece can be made in place."""
    shape = view.shape_of(node.output[0])
    bases = [builder.views.get(piece.name, piece.name) for piece in pieces]
    alike = not any(piece.block for piece in pieces) and len({piece.dtype for piece in pieces}) == 1
    if shape[0] != 1 or not alike or len(set(bases)) < len(bases) or not builder.movable_tensors().issuperset(bases):
        return False
    row_bytes = int(np.prod(shape[2:])) * np.dtype(pieces[0].dtype).itemsize
    starts = np.cumsum([0, *(piece.shape[1] for piece in pieces)])[:-1].tolist()
    if not all(
        start * row_bytes % ALIGNMENT == 0 or _may_be_unaligned(b, view, builder)
        for start, b in zip(starts, bases, strict=True)
    ):
        return False
    for piece, start in zip(pieces, starts, strict=True):
        builder.place(piece.name, Slice(node.output[0], start))
    builder.add_whole(Activation(node.output[0], pieces[0].dtype, shape))
    return True


def _may_be_unaligned(name: str, view: ModelView, builder: GraphBuilder) -> bool:
    """Whether a tensor may begin at any element: its kernel allows it, and only the concatenation reads it."""
    maker = next(layer for layer in builder.layers if any(tensor.name == name for tensor in layer.outputs))
    names = {name, *(alias for alias, base in builder.views.items() if base == name)}
    alone = all(len(view.users_of(n)) <= 1 for n in names) and not names & view.output_names
    return maker.op == "channels_last" and alone
