"""Sums of table rows picked by ids: many bags of one shape in one kernel (RECom 4.3, Ember's SLS family).

The code of a table is that of `veltair.compiler.embedding` at emb-opt3. An id is compared with the number of rows
before it is used, whatever was checked before: one that no row has reads row 0.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.embedding.access_emitter import DISTANCES, AccessEmitter
from veltair.compiler.embedding.dlc import decouple
from veltair.compiler.embedding.embedding_kernel import flat_memory
from veltair.compiler.embedding.families import sls
from veltair.compiler.embedding.passes import optimise
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.prim_func import build_prim_func

BAGS = (16, 4, 1, 64)  # of a table in a task


class EmbeddingBag:
    """inputs: ids (B, L) int64 or int32 a table; weights: table0, table1, … of R rows, as `rows.stored` keeps them;
    outputs: (B, D) a table.

    Attribute `reduce` is "sum" or "mean"; `storage`, if the rows are not fp32, how they are stored.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        """Memory-level parallelism against cache footprint: `ahead` rows are on their way at once. Tasks are `bags` of
        one table, or, `along` the bags, of all tables."""
        lookups = spec.inputs[0].shape[1]
        found: list[Point] = []
        for bags in BAGS:
            for along in ("tables", "bags") if len(spec.inputs) > 1 else ("tables",):
                for ahead in (16, 8, 32, 4, 0):
                    if ahead < max(bags * lookups, 2) and bags <= max(spec.max_batch, 4):
                        found.append({"ahead": ahead, "bags": bags, "along": along})
        return found

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        tables = [spec.weights[f"table{i}"] for i in range(len(spec.inputs))]
        ahead, bags, along = int(point["ahead"]), int(point["bags"]), point.get("along", "tables")
        assert ahead in DISTANCES
        lookups, width = spec.inputs[0].shape[1], spec.outputs[0].shape[1]
        reduce, ids = str(spec.attributes["reduce"]), spec.inputs[0].dtype
        programs = [
            decouple(optimise(sls(Activation("table", str(t.dtype), t.shape), width, ids, lookups, reduce), 3))
            for t in tables
        ]

        def body(*buffers: Any) -> None:
            count = len(tables)
            batch = buffers[0].shape[0]
            chunks = T.ceildiv(batch, bags)

            def some(i: int, chunk: Any) -> None:
                memories = {
                    name: flat_memory(buffers[i + place * count]) for place, name in enumerate(("ids", "table", "out"))
                }
                first = T.bind(chunk * bags)
                code = AccessEmitter(programs[i], memories, prod(buffers[i].shape), ahead)
                code.tile(first, T.min(bags, batch - first))

            with T.parallel(0, chunks if along == "bags" else count * chunks) as task:
                which, chunk = T.bind(task // chunks), T.bind(task % chunks)
                for i in range(count):
                    if along == "bags":
                        some(i, task)
                    else:
                        with when(which == i):
                            some(i, chunk)

        function = build_prim_func([*spec.inputs, *tables, *spec.outputs], body)
        bag_bytes = lookups * (tables[0][0].nbytes + 8) + width * 4
        each = len(tables) if along == "bags" else 1
        tasks = len(tables) // each * -(-spec.max_batch // bags)
        return Kernel(function, tuple(tables), each * bags * bag_bytes, tasks * max(ahead, 1))
