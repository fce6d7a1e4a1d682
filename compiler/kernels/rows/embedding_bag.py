"""Sums of table rows picked by ids: many bags of one shape in one kernel (RECom 4.3, Ember's SLS family).

The code of a table is that of `veltair.compiler.embedding` at the level of its point. An id is compared with the number
of rows before it is used, whatever was checked before: an id that is no row reads row 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.streaming_stores import with_streaming_stores
from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.embedding.access_emitter import DISTANCES, AccessEmitter
from veltair.compiler.embedding.dlc import decouple
from veltair.compiler.embedding.embedding_kernel import flat_memory
from veltair.compiler.embedding.families import sls
from veltair.compiler.embedding.passes import optimise
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.recommendation import EmbeddingBagParameters
from veltair.compiler.kernels.rows.lookup_ladder import is_streamed, ladder_points, level_of, order_distances

BAGS = (16, 4, 1, 64)  # of a table in a task


class TaskScope(StrEnum):
    """What a parallel task covers. The values stand in points as "along"."""

    ONE_TABLE = "tables"
    ALL_TABLES = "bags"


class EmbeddingBag:
    """inputs: ids (B, L) int64 or int32 for each table; weights: table0, table1, … of R rows, as
    `row_storage.encode_rows` keeps them; outputs: (B, D) for each table. Parameters: `EmbeddingBagParameters`.

    >>> ids, y = Activation("ids", "int64", (-1, 8)), Activation("y", "float32", (-1, 16))
    >>> spec = LayerSpec("bag", "embedding_bag", (ids,), (y,), {}, flops=0, max_batch=16)
    >>> sorted(EmbeddingBag().points(spec, frozenset({"avx2"}))[0])
    ['ahead', 'along', 'bags']
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        """Memory-level parallelism against cache footprint: `ahead` rows are fetched at once; levels and stores as
        `lookup_ladder` has them. A task takes `bags` bags of one table or of all tables."""
        lookups = spec.inputs[0].shape[1]
        scopes = (TaskScope.ONE_TABLE, TaskScope.ALL_TABLES) if len(spec.inputs) > 1 else (TaskScope.ONE_TABLE,)
        points: list[Point] = [
            {"ahead": ahead, "bags": bags, "along": scope.value}
            for bags in BAGS
            for scope in scopes
            for ahead in order_distances(spec)
            if ahead < max(bags * lookups, 2) and bags <= max(spec.max_batch, 4)
        ]
        return ladder_points(spec, points)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        tables = [spec.weights[f"table{i}"] for i in range(len(spec.inputs))]
        ahead, bags = int(point["ahead"]), int(point["bags"])
        scope = TaskScope(str(point.get("along", TaskScope.ONE_TABLE)))
        assert ahead in DISTANCES
        lookups, width = spec.inputs[0].shape[1], spec.outputs[0].shape[1]
        ids, reduce = spec.inputs[0].dtype, spec.parameters_as(EmbeddingBagParameters).reduce
        named = [Activation("table", str(table.dtype), table.shape) for table in tables]
        level, streamed = level_of(point), is_streamed(point)
        programs = [decouple(optimise(sls(table, width, ids, lookups, reduce), level)) for table in named]

        def body(*buffers: Any) -> None:
            chunks = T.ceildiv(buffers[0].shape[0], bags)
            with T.parallel(0, chunks if scope is TaskScope.ALL_TABLES else len(tables) * chunks) as task:
                table, chunk = T.bind(task // chunks), T.bind(task % chunks)
                for i in range(len(tables)):
                    if scope is TaskScope.ALL_TABLES:
                        emit_bags(i, task, buffers)
                    else:
                        with when(table == i):
                            emit_bags(i, chunk, buffers)

        def emit_bags(i: int, chunk: Expr, buffers: Sequence[Any]) -> None:
            """A chunk of the bags of the ith table."""
            operands = {name: buffers[i + nth * len(tables)] for nth, name in enumerate(("ids", "table", "out"))}
            memories = {name: flat_memory(buffer) for name, buffer in operands.items()}
            first = T.bind(chunk * bags)
            emitter = AccessEmitter(programs[i], memories, prod(operands["ids"].shape), ahead, streamed)
            emitter.tile(first, T.min(bags, buffers[0].shape[0] - first))

        function = build_prim_func(
            [*spec.inputs, *tables, *spec.outputs], with_streaming_stores(body) if streamed else body
        )
        bag_bytes = lookups * (tables[0][0].nbytes + 8) + width * 4
        tables_in_task = len(tables) if scope is TaskScope.ALL_TABLES else 1
        tasks = len(tables) // tables_in_task * -(-spec.max_batch // bags)
        return Kernel(function, tuple(tables), tables_in_task * bags * bag_bytes, tasks * max(ahead, 1))
