"""Weighted sums of rows, messages of neighbours, scores of triples: any program of look-ups at emb-opt3 as a layer."""

from __future__ import annotations

from veltair.compiler.embedding.embedding_kernel import embedding_function
from veltair.compiler.embedding.families import knowledge_graph, message_passing, sls
from veltair.compiler.embedding.slc import EmbeddingProgram
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point

SEGMENTS = (16, 4, 1, 64)  # of a task


class Lookups:
    """Attribute `family` is one of these; output (B, D), (B,) of triples. Weights: table0 (R, D), table1 of relations,
    as `rows.stored` keeps them.

        weighted   inputs: ids (B, L), weights (B, L) float32; attribute `reduce`, "sum" or "mean"
        messages   inputs: ids (B, L) of neighbours, ids (B,) of those they are neighbours of
        triples    inputs: ids (B,) of heads, relations and tails; attribute `norm`, 1 or 2

    An id that is no row of its table reads row 0.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        most = max(spec.max_batch, SEGMENTS[1])
        return [{"ahead": ahead, "bags": bags} for bags in SEGMENTS if bags <= most for ahead in (16, 0, 8, 32)]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        ahead, bags = int(point["ahead"]), int(point["bags"])
        tables = [spec.weights[f"table{i}"] for i in range(len(spec.weights))]
        ids = spec.inputs[0].shape
        rows = ids[1] if len(ids) == 2 else len(spec.inputs)
        block = bags * (rows * (tables[0][0].nbytes + 8) + int(spec.attributes["dim"]) * 4)
        tasks = -(-spec.max_batch // bags)
        return Kernel(embedding_function(_program(spec), 3, ahead, bags), tuple(tables), block, tasks * max(ahead, 1))


def _program(spec: LayerSpec) -> EmbeddingProgram:
    tables = [Activation(name, str(table.dtype), table.shape) for name, table in spec.weights.items()]
    dim, ids, shape = int(spec.attributes["dim"]), spec.inputs[0].dtype, spec.inputs[0].shape
    match spec.attributes["family"]:
        case "weighted":
            return sls(tables[0], dim, ids, shape[1], str(spec.attributes["reduce"]), weighted=True)
        case "messages":
            return message_passing(tables[0], dim, ids, shape[1])
        case _:
            return knowledge_graph(tables[0], tables[1], dim, int(spec.attributes["norm"]), ids)
