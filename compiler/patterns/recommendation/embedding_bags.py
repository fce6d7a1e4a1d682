"""Embedding bags in ONNX: a Gather from a constant table whose rows are reduced per bag, or are its bags."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

import onnx
from numpy.typing import NDArray

from veltair.compiler.embedding.row_storage import storage_of
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.recommendation import EmbeddingBagParameters, Reduction
from veltair.compiler.onnx.node_attributes import attribute, product_of, reduced_axes
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.types import TensorSpec

OnlyUser = Callable[[str], onnx.NodeProto | None]  # the one node that reads a tensor
REDUCTIONS = {"ReduceSum": Reduction.SUM, "ReduceMean": Reduction.MEAN, "ReduceMax": Reduction.MAX}


@dataclass(frozen=True, slots=True)
class EmbeddingBagMatch:
    """A Gather from a constant table, with the sum, mean or maximum of its rows where there is one.

    ::

        match = match_bag(node, model, only_user)
    """

    gather: onnx.NodeProto
    reduction: onnx.NodeProto | None  # none: every id is a bag
    table: NDArray[Any]  # its rows as the model keeps them; of blocks of rows, a block is one
    width: int
    ids: TensorSpec  # (bags, lookups); of any shape where every id is a bag

    @property
    def shape(self) -> tuple[int, int]:
        """Bags and lookups."""
        if self.reduction is None:
            return product_of(self.ids.shape), 1
        bags, lookups = self.ids.shape
        return bags, lookups

    @property
    def reduce(self) -> Reduction:
        return REDUCTIONS[self.reduction.op_type] if self.reduction is not None else Reduction.SUM

    @property
    def output(self) -> str:
        return str((self.reduction or self.gather).output[0])

    @property
    def kind(self) -> tuple[object, ...]:
        """What bags must have in common to be one layer."""
        return self.shape, self.ids.dtype, self.width, self.reduce, str(self.table.dtype)


def match_bag(node: onnx.NodeProto, model: OnnxModel, only_user: OnlyUser) -> EmbeddingBagMatch | None:
    """The bag that a Gather begins; None where it begins none."""
    table, ids = model.initializers.get(node.input[0]), model.values[node.input[1]]
    user = only_user(node.output[0])
    if table is None or table.ndim < 2 or ids.name in model.initializers:
        return None
    rows = model.values[node.input[0]]
    if rows.dtype != "float32":
        return None
    if not ids.shape or ids.dtype not in ("int64", "int32") or attribute(node, "axis", 0) != 0:
        return None
    alone = EmbeddingBagMatch(node, None, table.reshape(len(table), -1), product_of(rows.shape[1:]), ids)
    if table.ndim != 2 or len(ids.shape) != 2 or user is None or user.op_type not in REDUCTIONS:
        return alone
    sums = not attribute(user, "keepdims", 1) and reduced_axes(user, model.initializers) in ([1], [-2])
    return replace(alone, reduction=user) if sums else alone


def match_bags_alike(
    node: onnx.NodeProto, model: OnnxModel, only_user: OnlyUser, inputs: Set[str]
) -> list[EmbeddingBagMatch]:
    """The node's bag and all others of its kind that can run with it: those whose ids are inputs of the model."""
    bag = match_bag(node, model, only_user)
    if bag is None:
        return []
    if bag.ids.name not in inputs:
        return [bag]
    gathers = (n for n in model.nodes if n.op_type == "Gather" and n.input[1] in inputs)
    found = (match_bag(other, model, only_user) for other in gathers)
    return [other for other in found if other is not None and other.kind == bag.kind]


def embedding_bag(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """All bags of one kind as one layer, emitted at the first of them."""
    bags = match_bags_alike(node, view.model, view.only_user, builder.input_names)
    if not bags:
        return False
    (count, lookups), width = bags[0].shape, bags[0].width
    shape = view.shape_of(bags[0].output)
    flat = shape == (count, width)
    outputs = [Activation(bag.output if flat else f"{bag.output}/rows", "float32", (count, width)) for bag in bags]
    inputs = [builder.reshape(builder.to_row_major(bag.ids.name), bag.shape) for bag in bags]
    weights = {f"table{i}": builder.tables.encode(bag.gather.input[0], bag.table) for i, bag in enumerate(bags)}
    parameters = EmbeddingBagParameters(
        reduce=bags[0].reduce,
        storage=storage_of(weights["table0"]),
        table_bytes=sum(table.nbytes for table in weights.values()),
    )
    flops = abs(count) * lookups * width * len(bags)
    builder.emit(node.name, "embedding_bag", inputs, outputs, parameters, weights, flops)
    for bag, output in zip(bags, outputs, strict=True):
        builder.take(node for node in (bag.gather, bag.reduction) if node is not None)
        if not flat:
            builder.alias(Activation(bag.output, "float32", view.shape_of(bag.output)), output.name)
    return True
