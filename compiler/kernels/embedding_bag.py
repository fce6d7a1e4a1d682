"""Sums of table rows picked by ids: many bags of one shape in one kernel (RECom 4.3, Ember's SLS family).

An id is compared with the number of rows before it is used, whatever was checked before: a kernel never reads
outside a table. Rows ahead are prefetched, since tables are larger than any cache.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels.emit import LANES, Expr, lanes, primitive, when

LINE = 16  # floats in a cache line


class EmbeddingBag:
    """inputs: ids (B, L) int64 or int32 a table; weights: table0, table1, … (R, D); outputs: (B, D) a table.

    Attribute `reduce` is "sum" or "mean". D need not be a multiple of 16.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        lookups = spec.inputs[0].shape[1]
        ahead = [d for d in (8, 4, 16, 0) if d < lookups]
        return [{"ahead": d, "bags": b} for b in (1, 4, 16) for d in ahead]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        tables = [spec.weights[f"table{i}"] for i in range(len(spec.inputs))]
        ahead, bags = int(point["ahead"]), int(point["bags"])
        lookups, width = spec.inputs[0].shape[1], spec.outputs[0].shape[1]
        vectors, tail = divmod(width, LANES)
        mean = spec.attributes["reduce"] == "mean"

        def body(*buffers: Any) -> None:
            count = len(tables)
            batch = buffers[0].shape[0]
            chunks = T.ceildiv(batch, bags)

            def bag(ids: Any, table: Any, out: Any, row: Expr, acc: Any) -> None:
                rows = table.shape[0]

                def safe(position: Expr) -> Expr:
                    found = T.bind(T.cast(ids[row, position], "int64"))
                    inside = T.cast(found, "uint64") < T.uint64(int(rows))  # one compare: negatives wrap
                    return T.bind(T.Select(inside, found, T.int64(0)))

                for v in range(vectors):
                    T.buffer_store(acc, T.broadcast(T.float32(0), LANES), [v])
                for t in range(tail):
                    T.buffer_store(out, T.float32(0), [row, vectors * LANES + t])
                with T.serial(0, lookups) as position:
                    if ahead:
                        with when(position + ahead < lookups):
                            later = safe(position + ahead)
                            for line in range(0, width, LINE):
                                where = T.address_of(table[later, T.int64(line)])
                                T.evaluate(
                                    T.call_llvm_intrin("void", "llvm.prefetch.p0", where, *map(T.int32, (0, 3, 1)))
                                )
                    found = safe(position)
                    for v in range(vectors):
                        value = table[found, lanes(T.int64(v * LANES))]
                        T.buffer_store(acc, acc[v] + value, [v])
                    for t in range(tail):
                        column = vectors * LANES + t
                        T.buffer_store(out, out[row, column] + table[found, T.int64(column)], [row, column])
                scale = T.float32(1.0 / lookups if mean else 1.0)
                for v in range(vectors):
                    T.buffer_store(out, acc[v] * T.broadcast(scale, LANES), [row, lanes(v * LANES)])
                for t in range(tail if mean else 0):
                    column = vectors * LANES + t
                    T.buffer_store(out, out[row, column] * scale, [row, column])

            with T.parallel(0, count * chunks) as task:
                acc = T.alloc_buffer((max(vectors, 1),), "float32x16", scope="local")
                which, chunk = T.bind(task // chunks), T.bind(task % chunks)
                for i in range(count):
                    with when(which == i), T.serial(0, T.min(bags, batch - chunk * bags)) as b:
                        bag(buffers[i], buffers[count + i], buffers[2 * count + i], chunk * bags + b, acc)

        function = primitive([*spec.inputs, *tables, *spec.outputs], body)
        bag_bytes = lookups * (width * 4 + 8) + width * 4
        parallelism = len(tables) * -(-spec.max_batch // bags) * max(ahead, 1)
        return Kernel(function, tuple(tables), bags * bag_bytes, parallelism)
