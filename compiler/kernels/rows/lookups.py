"""Weighted sums of rows, messages of neighbours, scores of triples: any program of lookups as a layer."""

from __future__ import annotations

from veltair.compiler.embedding.embedding_kernel import embedding_function
from veltair.compiler.embedding.families import knowledge_graph, message_passing, sls
from veltair.compiler.embedding.slc import EmbeddingProgram
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.recommendation import LookupFamily, LookupParameters, Reduction
from veltair.compiler.kernels.rows.lookup_ladder import is_streamed, ladder_points, level_of, order_distances

SEGMENTS = (16, 4, 1, 64)  # of a task


class Lookups:
    """output (B, D), or (B,) for triples. Weights: table0 (R, D), and table1 of relations, as `row_storage.encode_rows`
    keeps them. Parameters: `LookupParameters`, whose family says what the inputs are:

        weighted   ids (B, L), weights (B, L) float32
        ragged     ids (B, L); perhaps lengths (B,) int64: so many of a row's ids count; perhaps weights (B, L) float32
        messages   ids (B, L) of neighbours, ids (B,) of the rows whose neighbours they are
        triples    ids (B,) of heads, relations and tails

    Negative ids count from the end; an id that is no row of its table reads row 0.

    >>> ids, y = Activation("ids", "int64", (-1, 8)), Activation("y", "float32", (-1, 16))
    >>> spec = LayerSpec("lookup", "lookups", (ids,), (y,), {}, flops=0, max_batch=16)
    >>> sorted(Lookups().points(spec, frozenset({"avx2"}))[0])
    ['ahead', 'bags']
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        most = max(spec.max_batch, SEGMENTS[1])
        distances = order_distances(spec)
        points: list[Point] = [{"ahead": n, "bags": bags} for bags in SEGMENTS if bags <= most for n in distances]
        return ladder_points(spec, points)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        ahead, bags = int(point["ahead"]), int(point["bags"])
        tables = [spec.weights[f"table{i}"] for i in range(len(spec.weights))]
        ids = spec.inputs[0].shape
        rows = ids[1] if len(ids) == 2 else len(spec.inputs)
        dim = spec.parameters_as(LookupParameters).dim
        block_size = bags * (rows * (tables[0][0].nbytes + 8) + dim * 4)
        tasks = -(-spec.max_batch // bags)
        function = embedding_function(_program(spec), level_of(point), ahead, bags, is_streamed(point))
        return Kernel(function, tuple(tables), block_size, tasks * max(ahead, 1))


def _program(spec: LayerSpec) -> EmbeddingProgram:
    parameters = spec.parameters_as(LookupParameters)
    tables = [Activation(name, str(table.dtype), table.shape) for name, table in spec.weights.items()]
    dim, ids, shape = parameters.dim, spec.inputs[0].dtype, spec.inputs[0].shape
    match parameters.family:
        case LookupFamily.WEIGHTED_SUM:
            return sls(tables[0], dim, ids, shape[1], parameters.reduce or Reduction.SUM, weighted=True)
        case LookupFamily.RAGGED_BAG:
            beside = [each.dtype for each in spec.inputs[1:]]
            return sls(
                tables[0],
                dim,
                ids,
                shape[1],
                parameters.reduce or Reduction.SUM,
                weighted="float32" in beside,
                ragged="int64" in beside,
                padding=parameters.padding,
            )
        case LookupFamily.MESSAGE_PASSING:
            return message_passing(tables[0], dim, ids, shape[1])
        case LookupFamily.KNOWLEDGE_GRAPH:
            return knowledge_graph(tables[0], tables[1], dim, parameters.norm or 1, ids)
