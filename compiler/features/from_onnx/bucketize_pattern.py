"""Recognises Bucketize in ONNX: a number compared with many boundaries, and the comparisons that hold counted.

Or TensorFlow's own operator of that name, which tf2onnx leaves as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from veltair.compiler.features.from_onnx.key_sources import KeySource
from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.onnx.node_attributes import attribute

MIRRORED = {"GreaterOrEqual": "LessOrEqual", "Greater": "Less", "Less": "Greater", "LessOrEqual": "GreaterOrEqual"}
TENSORFLOW = "Bucketize"
SUMS = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT)


@dataclass(frozen=True, slots=True)
class BucketizePattern:
    """A sum that is a bucket.

    >>> BucketizePattern(KeySource("age", "float"), (18.0, 65.0), np.array([0, 1, 2]), nan=0).edges
    (18.0, 65.0)
    """

    source: KeySource
    edges: tuple[float, ...]  # float32, rising
    counts: NDArray[np.generic]  # the sum in each bucket: below the first edge, …, from the last one on
    nan: int  # the bucket of NaN


def find_bucketize(graph: OnnxGraphIndex, numeric: tuple[str, ...]) -> dict[str, BucketizePattern]:
    """The buckets by the name of each node that gives them, of inputs that nothing else reads, for lookups alone.

    numeric: operators that may stand between sum and lookup.
    """
    found: dict[str, BucketizePattern] = {}
    for node in graph.nodes:
        match = _match_operator if node.op_type == TENSORFLOW else _match_sum
        if (buckets := match(node, graph)) is not None:
            found[node.name] = buckets
    sums = {node.name: node for node in graph.nodes if node.name in found}
    kept = {name for name in found if _only_looked_up(sums[name].output[0], graph, numeric)}
    wrong = {b.source.name for name, b in found.items() if name not in kept}
    wrong |= {b.source.name for b in found.values() if not _all_counted(b.source.name, graph, kept)}
    return {name: b for name, b in found.items() if b.source.name not in wrong}


def _match_operator(node: onnx.NodeProto, graph: OnnxGraphIndex) -> BucketizePattern:
    """TensorFlow's operator: the number of boundaries that are not above; of NaN, which is below none, all of them.

    Raises ModelError, since ONNX has no such operator that anything else could take.
    """
    limits = read_boundaries(node, graph)
    source = _match_input(node.input[0], graph, (1, 2))
    if source is None:
        raise graph.error(node, "expected to read an input of float32 or int64 with one value a row")
    edges, often = np.unique(limits, return_counts=True)
    counts = np.concatenate([[0], np.cumsum(often)]).astype(np.int32)
    return BucketizePattern(source, tuple(edges.tolist()), counts, len(edges))


def read_boundaries(node: onnx.NodeProto, graph: OnnxGraphIndex) -> NDArray[np.float32]:
    """The boundaries of TensorFlow's operator. Raises ModelError unless they are numbers that do not fall."""
    limits = np.asarray(attribute(node, "boundaries", []), np.float32)
    if not limits.size or not np.isfinite(limits).all() or (np.diff(limits) < 0).any():
        raise graph.error(node, "expected boundaries, float32 numbers that do not fall")
    return limits


def _match_sum(node: onnx.NodeProto, graph: OnnxGraphIndex) -> BucketizePattern | None:
    cast = graph.producer.get(node.input[0]) if node.op_type == "ReduceSum" else None
    compare = graph.producer.get(cast.input[0]) if cast is not None and cast.op_type == "Cast" else None
    if cast is None or compare is None or compare.op_type not in MIRRORED or len(node.input) < 2:
        return None
    axes = graph.constant(node.input[1])
    if axes is None or axes.reshape(-1).tolist() not in ([1], [-1]) or attribute(cast, "to", 0) not in SUMS:
        return None
    number, operation, limits = compare.input[0], compare.op_type, graph.constant(compare.input[1])
    if limits is None:
        number, operation, limits = compare.input[1], MIRRORED[operation], graph.constant(compare.input[0])
    source = _match_input(number, graph)
    if source is None or limits is None or limits.dtype != np.float32 or not np.isfinite(limits).all():
        return None
    if limits.ndim not in (1, 2) or limits.shape[-1] != limits.size or not limits.size:
        return None
    if operation in ("Greater", "LessOrEqual"):  # x > e: x is not below the next number
        limits = np.nextafter(limits, np.float32(np.inf))
    edges, often = np.unique(limits, return_counts=True)
    above = np.concatenate([[0], np.cumsum(often)])
    greater = operation in ("Greater", "GreaterOrEqual")
    counts = above if greater else limits.size - above
    dtype = helper.tensor_dtype_to_np_dtype(attribute(cast, "to", 0))
    return BucketizePattern(source, tuple(edges.tolist()), counts.astype(dtype), 0 if greater else len(edges))


def _match_input(name: str, graph: OnnxGraphIndex, ranks: tuple[int, ...] = (2,)) -> KeySource | None:
    """The input that a tensor of float32 with one value a row is, by way of Cast and Unsqueeze.

    ranks: those that the tensor may have: (batch,), (batch, 1).
    """
    whole = raised = False
    while name in graph.producer:
        node = graph.producer[name]
        if node.op_type == "Cast" and attribute(node, "to", 0) == TensorProto.FLOAT and not whole:
            whole = True
        elif node.op_type == "Unsqueeze" and not raised and _axes(node, graph) in ([1], [-1]):
            raised = True
        else:
            return None
        name = node.input[0]
    rank = graph.rows(name) if name in graph.inputs else None
    if rank is None or (rank + raised) not in ranks or rank + raised > 2:
        return None
    wanted = TensorProto.INT64 if whole else TensorProto.FLOAT
    return KeySource(name, "int" if whole else "float") if graph.type_of(name) == wanted else None


def _axes(node: onnx.NodeProto, graph: OnnxGraphIndex) -> list[int]:
    given = graph.constant(node.input[1]) if len(node.input) > 1 else None
    return list(attribute(node, "axes", []) if given is None else given.reshape(-1).tolist())


def _only_looked_up(name: str, graph: OnnxGraphIndex, numeric: tuple[str, ...]) -> bool:
    """Whether a tensor, and what operators make of it and constants alone, only picks rows of constant tables."""
    made, left, between = {name}, [name], list[onnx.NodeProto]()
    while left:
        given = left.pop()
        if graph.is_output(given) or not graph.users(given):
            return False
        for user in graph.users(given):
            if user.op_type == "Gather" and list(user.input).index(given) == 1:
                table = graph.constant(user.input[0])
                if table is None or table.ndim != 2 or attribute(user, "axis", 0) not in (0, -2):
                    return False
            elif user.op_type not in (*numeric, *VIEWS):
                return False
            elif user.output[0] not in made:
                made.add(user.output[0])
                left.append(user.output[0])
                between.append(user)
    others = {given for node in between if node.op_type not in VIEWS for given in node.input if given} - made
    return all(graph.constant(given) is not None for given in others)


def _all_counted(name: str, graph: OnnxGraphIndex, kept: set[str]) -> bool:
    """Whether every reader of an input is a comparison that a kept sum counts."""
    if graph.is_output(name):
        return False
    for user in graph.users(name):
        if user.name not in kept and (
            user.op_type not in (*MIRRORED, "Cast", "Unsqueeze", "ReduceSum")
            or not _all_counted(user.output[0], graph, kept)
        ):
            return False
    return bool(graph.users(name))
