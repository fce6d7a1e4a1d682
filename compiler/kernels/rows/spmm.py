"""A sparse matrix of constants times a dense one that is computed: the sum over the neighbours in a graph network.

The sparse matrix lies in CSR, as the weights "ids" (columns), "offsets" and "entries". The code is that of
`veltair.compiler.embedding` at the level of its point, with the dense matrix as its table (Ember 2.2.1).
"""

from __future__ import annotations

from dataclasses import replace

from veltair.compiler.embedding.access_emitter import DISTANCES
from veltair.compiler.embedding.embedding_kernel import embedding_function
from veltair.compiler.embedding.families import spmm
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.kernels.rows.lookup_ladder import is_streamed, ladder_points, level_of, order_distances

SEGMENTS = (64, 16, 256)  # rows of the result in a task


class Spmm:
    """input: the dense matrix (R, D); output (N, D). Weights: ids int32 (entries,), offsets int64 (N + 1,), entries
    float32 (entries,). Parameters: `SpmmParameters`.

    >>> x, y = Activation("x", "float32", (40, 16)), Activation("y", "float32", (1000, 16))
    >>> spec = LayerSpec("sums", "spmm", (x,), (y,), {}, flops=0)
    >>> sorted(Spmm().points(spec, frozenset({"avx2"}))[0])
    ['ahead', 'bags']
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        """Levels, distances and stores of Ember's ladder; a task computes `bags` rows."""
        most, distances = max(spec.outputs[0].shape[0], SEGMENTS[0]), order_distances(spec)
        points: list[Point] = [{"ahead": n, "bags": bags} for bags in SEGMENTS if bags <= most for n in distances]
        return ladder_points(spec, points)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        ahead, bags = int(point["ahead"]), int(point["bags"])
        assert ahead in DISTANCES
        names = ("ids", "offsets", "entries")
        matrix = tuple(spec.weights[name] for name in names)
        count, dim = spec.outputs[0].shape
        table = Activation("table", "float32", spec.inputs[0].shape)
        program = spmm(table, dim, "int32")
        ids, offsets, entries = (array.shape for array in matrix)
        operands = (
            table,
            Activation("ids", "int32", ids),
            Activation("offsets", "int64", offsets),
            Activation("weights", "float32", entries),
            Activation("out", "float32", (count, dim)),
        )
        function = embedding_function(
            replace(program, memories=operands), level_of(point), ahead, bags, is_streamed(point)
        )
        of_row = -(-ids[0] // max(count, 1))
        block_size = bags * (of_row * (4 * dim + 8) + 4 * dim)
        return Kernel(function, matrix, block_size, -(-count // bags) * max(ahead, 1))
