"""Numbers to buckets: how many boundaries a number is not below, of many rows at a time.

Up to COUNTED boundaries lie in 16 stretches side by side (`plan`). The first of each tell which stretch a number falls
into; then one vector holds the next boundary of every stretch, and each number is compared with its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.features.kernel.column_table import COUNTED, EDGES, Field
from veltair.compiler.features.kernel.hashing import in_register
from veltair.compiler.features.kernel.index_emitter import IndexEmitter
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import prefetch
from veltair.compiler.kernels.codegen.vectors import (
    LANES,
    Expr,
    broadcast,
    broadcast_uint32,
    permute_lanes,
    ramp,
    vector_type,
)

GANG = 4  # vectors of rows that are compared with a boundary together


def emit_buckets(of: IndexEmitter, column: Expr, base: Expr, kind: str, out: Any) -> None:
    """A tile's indices of a column from `base` on in `out`. A NaN is below no boundary, or has the default."""
    work, edges = of.work, of.work.buffers["edges"]
    values = work.buffers["ints" if kind == "int" else "floats"]
    first, size = of.field(column, Field.FIRST), of.field(column, Field.SIZE)
    origin = of.at(column, work.start)
    depth = in_register(T.shift_right(size + EDGES - 1, 4))  # boundaries of a stretch

    odd = of.field(column, Field.DEFAULT)

    def none(x: Expr, count: int) -> Expr:
        """Whether it is NaN, and NaN has a bucket of its own. By its bits: TVM takes x != x for false."""

        magnitude = T.bitwise_and(T.reinterpret(vector_type("uint32", count), x), broadcast_uint32(0x7FFFFFFF, count))
        return T.And(magnitude > broadcast_uint32(0x7F800000, count), broadcast(odd >= 0, count))

    def counted(rows: list[Expr], numbers: Callable[[Expr], Expr]) -> None:
        xs = [in_register(numbers(row)) for row in rows]
        acc = T.alloc_buffer((len(rows) * LANES,), "int32", scope="global")
        places = [ramp(v * LANES) for v in range(len(rows))]

        def count(edge_of: Callable[[int], Expr]) -> None:
            for number, (place, x) in enumerate(zip(places, xs, strict=True)):
                more = T.Select(x < edge_of(number), broadcast(T.int32(0)), broadcast(T.int32(1)))
                T.buffer_store(acc, acc[place] + more, [place])

        for place in places:
            T.buffer_store(acc, broadcast(T.int32(0)), [place])
        if work.permutes:  # in which stretch it falls, then how many of this stretch it is not below
            with T.serial(1, EDGES) as i:
                edge = in_register(broadcast(edges[first + i]))
                count(lambda number: edge)
            stretches = [in_register(acc[place]) for place in places]
            for place, stretch in zip(places, stretches, strict=True):
                T.buffer_store(acc, stretch * broadcast(depth), [place])
            with T.serial(0, depth) as i:
                line = in_register(edges[ramp(first + i * EDGES)])
                count(lambda number: in_register(permute_lanes(line, stretches[number])))
        else:
            with T.serial(0, depth * EDGES) as i:
                edge = in_register(broadcast(edges[first + i]))
                count(lambda number: edge)
        for place, row, x in zip(places, rows, xs, strict=True):
            bucket = T.min(acc[place], broadcast(size))  # infinity is not below what fills the last stretch
            T.buffer_store(out, T.Select(none(x, LANES), broadcast(odd), bucket), [ramp(base + row)])

    def neighbours(row: Expr) -> Expr:
        at = in_register(origin + T.cast(row, "int64"))
        for line in range(1 if kind == "float" else 2):  # those of the next tile
            prefetch(values[at + work.rows + line * LANES // 2])
        return T.cast(values[ramp(at)], f"float32x{LANES}")

    def searched(row: Expr) -> None:
        """The first boundary that the number is below, by halves."""
        span = T.alloc_buffer((2,), "int32", scope="global")
        x = in_register(T.cast(values[origin + T.cast(row, "int64")], "float32"))
        T.buffer_store(span, T.int32(0), [0])
        T.buffer_store(span, size, [1])
        with T.While(span[1] > 0):
            half = in_register(T.shift_right(span[1], 1))
            below = T.bind(x < edges[first + span[0] + half])
            T.buffer_store(span, T.Select(below, span[0], span[0] + half + 1), [0])
            T.buffer_store(span, T.Select(below, half, span[1] - half - 1), [1])
        T.buffer_store(out, T.Select(none(x, 1), odd, span[0]), [base + row])

    def few() -> None:
        """The only rows of a batch, or the last of one that begins with them: fewer than 16 numbers are there."""
        some = T.alloc_buffer((LANES,), "float32", scope="global")
        T.buffer_store(some, broadcast(0.0), [ramp(0)])
        with T.serial(0, work.count) as row:
            T.buffer_store(some, T.cast(values[origin + T.cast(row, "int64")], "float32"), [row])
        counted([T.int32(0)], lambda row: some[ramp(row)])

    with T.If(size > COUNTED):
        with T.Then(), T.serial(0, work.count) as row:
            searched(row)
        with T.Else(), T.If(work.start + work.count < LANES):
            with T.Then():
                few()
            with T.Else():
                gang = GANG * LANES
                with T.serial(0, T.floordiv(work.count, gang)) as g:
                    counted([in_register(g * gang + v * LANES) for v in range(GANG)], neighbours)
                done = in_register(T.floordiv(work.count, gang) * gang)
                with T.serial(0, T.floordiv(work.count - done, LANES)) as v:
                    counted([in_register(done + v * LANES)], neighbours)
                with when(T.floormod(work.count, LANES) > 0):  # the last 16, some for the second time
                    counted([in_register(work.count - LANES)], neighbours)
