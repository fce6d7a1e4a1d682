"""Sums over the neighbours in a graph whose edges are constants, as exporters of graph networks write them.

    ScatterND(zeros, targets, messages, reduction="add")          of targets (edges, 1)
    ScatterElements(zeros, targets, messages, axis=0, "add")      of targets (edges, D), the same in each column

of messages = Gather(rows, sources), or Mul of these and a constant for each edge. Together they are a sparse matrix
times a dense one, and no message exists. PyTorch Geometric's `scatter` and `index_add` become these operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.recommendation import SpmmParameters
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.patterns.recommendation.constant_ids import checked_ids
from veltair.compiler.patterns.recommendation.lookup_match import both_orders, sole_producer


@dataclass(frozen=True, slots=True)
class NeighbourSumMatch:
    """Edges of a graph in the order of the model; entries of none are 1.

    >>> NeighbourSumMatch("h", "/rows", np.array([1]), np.array([0]), None).rows
    'h'
    """

    rows: str  # the dense matrix
    gather: str  # the node that picks its rows, for messages
    sources: NDArray[Any]  # (edges,)
    targets: NDArray[Any]  # (edges,)
    entries: NDArray[Any] | None  # (edges,)


def find_neighbour_sums(view: ModelView) -> Matches:
    matches = Matches()
    for node in view.nodes:
        if node.op_type in ("ScatterND", "ScatterElements"):
            _match(node, view, matches)
    return matches


def neighbour_sum(node: NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Emit "spmm". Raises ModelError for an edge from or to a node that there is not."""
    found = view.matches.at(node, NeighbourSumMatch)
    if found is None:
        return False
    table, (count, dim) = builder.to_row_major(found.rows), view.shape_of(node.output[0])
    rows = table.shape[0]
    sources = checked_ids(found.sources, rows, found.gather, f"{rows} rows", "one names row")
    targets = checked_ids(found.targets, count, node.name, f"{count} rows", "one names row of the result")
    order = np.argsort(targets, kind="stable")
    entries = np.ones(len(order), np.float32) if found.entries is None else found.entries[order]
    weights = {
        "ids": sources[order],
        "offsets": np.append(0, np.cumsum(np.bincount(targets, minlength=count))),
        "entries": np.ascontiguousarray(entries, np.float32),
    }
    y = Activation(node.output[0], "float32", (count, dim))
    builder.emit(node.name, "spmm", [table], [y], SpmmParameters(len(order)), weights, 2 * len(order) * dim)
    return True


def _match(node: NodeProto, view: ModelView, matches: Matches) -> None:
    """One whose rows have no batch: edges are between rows, whichever sample they are of."""
    shape, targets = view.shape_of(node.output[0]), _targets(node, view)
    zeros = view.constants.get(node.input[0])
    floats = view.values[node.output[0]].dtype == "float32"
    if zeros is None or zeros.any() or targets is None or not floats or len(shape) != 2 or min(shape) < 1:
        return
    inner, rows, entries = list[NodeProto](), node.input[2], None
    product = sole_producer(rows, "Mul", view)
    if product is not None:
        for first, second in both_orders(product):
            factor = view.constants.get(second)
            if factor is not None and factor.shape in ((len(targets), 1), (1, 1), (1,), ()):
                inner, rows = [product], first
                entries = np.broadcast_to(factor.reshape(-1), len(targets))
    gather = sole_producer(rows, "Gather", view)
    sources = None if gather is None else view.constants.get(gather.input[1])
    if gather is None or sources is None or sources.ndim != 1 or len(sources) != len(targets):
        return
    dense = view.values[gather.input[0]]
    plain = gather.input[0] not in view.constants and len(dense.shape) == 2 and min(dense.shape) > 0
    if plain and dense.dtype == "float32" and attribute(gather, "axis", 0) in (0, -2) and len(targets):
        found = NeighbourSumMatch(gather.input[0], gather.name, sources, targets, entries)
        matches.add(node, found, [*inner, gather])


def _targets(node: NodeProto, view: ModelView) -> NDArray[Any] | None:
    """The row to which each edge adds."""
    reduction = attribute(node, "reduction", b"none")
    indices = view.constants.get(node.input[1])
    if indices is None or indices.ndim != 2 or reduction not in (b"add", "add"):
        return None
    if node.op_type == "ScatterND":
        return indices[:, 0] if indices.shape[1] == 1 else None
    alike = indices.shape == view.shape_of(node.input[2]) and attribute(node, "axis", 0) in (0, -2)
    return indices[:, 0] if alike and indices.shape[1] and (indices == indices[:, :1]).all() else None
