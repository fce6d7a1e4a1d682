"""A lookup that was found in a model, and the questions by which each family of them is recognised."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import NodeProto

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.recommendation import LookupFamily, Reduction
from veltair.compiler.onnx.node_attributes import attribute, reduced_axes


@dataclass(frozen=True, slots=True)
class LookupMatch:
    """A lookup of one of the families.

    >>> LookupMatch(("ids", "weights"), ("table",), LookupFamily.WEIGHTED_SUM, ()).norm is None
    True
    """

    inputs: tuple[str, ...]  # ids first
    tables: tuple[str, ...]
    family: LookupFamily
    inner: tuple[NodeProto, ...]  # all nodes but the last
    reduce: Reduction | None = None  # of a weighted sum or ragged bags
    norm: int | None = None  # of triples
    padding: int | None = None  # of ragged bags: an id that counts as none


def sole_producer(name: str, kind: str, view: ModelView) -> NodeProto | None:
    """The node of this kind that makes a tensor, of which there is one reader."""
    node = view.makers.get(name)
    return node if node is not None and node.op_type == kind and view.only_user(name) is not None else None


def both_orders(node: NodeProto) -> tuple[tuple[str, str], tuple[str, str]]:
    first, second = node.input
    return (first, second), (second, first)


def gather_of(name: str, view: ModelView) -> NodeProto | None:
    """The Gather that makes a tensor of rows of a constant table by ids that are not."""
    node = view.makers.get(name)
    if node is None or node.op_type != "Gather" or attribute(node, "axis", 0) != 0:
        return None
    table = view.values.get(node.input[0])
    kinds = view.values[node.input[1]].dtype, table.dtype if table is not None else ""
    constant = node.input[0] in view.constants and node.input[1] not in view.constants
    fits = constant and kinds[0] in ("int64", "int32") and kinds[1] == "float32"
    return node if fits and view.constants[node.input[0]].ndim == 2 else None


def reduces_axis(node: NodeProto, view: ModelView, axis: int, keepdims: int) -> bool:
    if not node.op_type.startswith("Reduce"):
        return False
    rank = len(view.shape_of(node.input[0]))
    axes = [each % rank for each in reduced_axes(node, view.constants)]
    return axes == [axis] and attribute(node, "keepdims", 1) == keepdims


def is_float(name: str, shape: tuple[int, ...], view: ModelView) -> bool:
    found = view.values.get(name)
    return found is not None and found.dtype == "float32" and found.shape == shape
