"""Products of many small matrices, fp32: both sides computed, batch dimensions broadcast, transposes by addressing.

A task takes one product, a panel of `columns` vectors of its columns and a share of its rows. It packs its panel of the
right side into a scratch (turned in registers where the reduction is what lies contiguous), then makes register tiles
of `rows` rows. A last tile that would reach past the rows begins earlier and makes some of them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.activation import apply_activation
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import masked_store, vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.transpose import transpose_16x16
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.matmul import batched_matmul_bf16
from veltair.compiler.kernels.matmul.batched_operands import contiguous, place, rows_of, sides

FEW_ROWS = 4  # below so many, packing a side costs more than tiles save; 9 x 32 x 9 takes 0.46 to 0.6 times as long


class BatchedMatmul:
    """output = activation(scale * left @ right + bias); `order` of a side is the transpose that makes (…, M, K) or
    (…, K, N) of it. inputs: left, right, or the one of them that is not among the weights: left or right, bias (N).
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        height, width = rows_of(spec), spec.outputs[0].shape[-1]
        vectors = -(-width // LANES)
        registers, per_vector = (30, 1) if "avx512" in features else (14, 2)
        found: list[tuple[float, Point]] = []
        least = abs(spec.outputs[0].shape[-2])  # rows that there always are
        for columns in (c for c in (4, 3, 2, 1) if c <= vectors and 2 * c * per_vector <= registers):
            most = min(registers // per_vector // columns - 1, least)
            for rows in sorted({most, -(-most * 2 // 3)}):
                tiles = -(-height // rows)
                step = max(rows * columns / 2, (rows + columns) / 2, 4.0) * per_vector
                cost = -(-vectors // columns) * tiles * step
                for chunks in (c for c in (1, 2, 4) if c == 1 or 2 * c <= tiles):
                    point: Point = {"columns": columns, "rows": rows, "chunks": chunks}
                    found.append((cost * (1 + 0.05 * chunks), point))
        best = min(cost for cost, _ in found)
        return [point for cost, point in sorted(found, key=lambda pair: pair[0]) if cost < 2 * best]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y, attributes = spec.outputs[0], spec.attributes
        columns, rows, chunks = int(point["columns"]), int(point["rows"]), int(point["chunks"])
        panel, width = columns * LANES, y.shape[-1]
        groups = -(-width // panel)
        depth = sides(spec)[0][-1]
        bias = pad_axis(spec.weights["bias"], 0, panel)
        constant = tuple(spec.weights[side] for side in ("left", "right") if side in spec.weights)
        activation, scale = str(attributes["activation"]), float(attributes["scale"])
        packing = contiguous(attributes["right_order"])

        def body(*buffers: Any) -> None:
            X, Z = buffers[:2] if "left" not in spec.weights else buffers[1::-1]
            bias_, Y = buffers[-2:]
            left = place(X, attributes["left_order"])
            right = place(Z, attributes["right_order"])
            *outer, total, _ = Y.shape
            tall = T.ceildiv(T.ceildiv(total, rows), chunks)  # tiles of a task

            def tile(acc: Any, packed: Any, image: Sequence[Expr], group: Expr, row: Expr) -> None:
                for r in range(rows * columns):
                    T.buffer_store(acc, broadcast(0.0), [r])
                with T.serial(0, depth) as k:
                    taps = [T.bind(vector_load(packed, k, c * LANES)) for c in range(columns)]
                    for r in range(rows):
                        value = T.bind(broadcast(vector_load(X, *left(image, row + r, k), count=1)))
                        for c in range(columns):
                            at = r * columns + c
                            T.buffer_store(acc, acc[at] + value * taps[c], [at])
                for r in range(rows):
                    for c in range(columns):
                        column = T.bind(group * panel + c * LANES)
                        with when(column < width):
                            value = acc[r * columns + c] * broadcast(scale) + vector_load(bias_, column)
                            value = T.bind(apply_activation(value, activation))
                            masked_store(Y, value, *image, row + r, column, width=width)

            def pack(packed: Any, image: Sequence[Expr], group: Expr) -> None:
                """Columns behind the last are zero."""
                first = T.bind(group * panel)

                def one(k: Expr, c: Expr) -> None:
                    with when(first + c < width):
                        T.buffer_store(packed, vector_load(Z, *right(image, k, first + c), count=1), [k, c])
                    with when(first + c >= width):
                        T.buffer_store(packed, T.float32(0), [k, c])

                if packing == "rows":
                    with T.serial(0, depth) as k, T.serial(0, columns) as c:
                        with when(first + (c + 1) * LANES <= width):
                            vector_store(packed, vector_load(Z, *right(image, k, first + c * LANES)), k, c * LANES)
                        if width % LANES:
                            with when(first + (c + 1) * LANES > width), T.serial(0, LANES) as lane:
                                one(k, c * LANES + lane)
                    return
                whole = depth - depth % LANES if packing == "columns" else 0
                with T.serial(0, columns) as c:
                    if whole:
                        with when(first + (c + 1) * LANES <= width), T.serial(0, whole // LANES) as step:
                            lines = [
                                T.bind(vector_load(Z, *right(image, step * LANES, first + c * LANES + i)))
                                for i in range(LANES)
                            ]
                            for i, line in enumerate(transpose_16x16(lines)):
                                vector_store(packed, line, step * LANES + i, c * LANES)
                        with when(first + (c + 1) * LANES > width), T.grid(whole, LANES) as (k, lane):
                            one(k, c * LANES + lane)
                    if depth > whole:
                        with T.grid(depth - whole, LANES) as (k, lane):
                            one(whole + k, c * LANES + lane)

            tasks = groups * chunks
            for extent in outer:
                tasks = tasks * extent
            with T.parallel(0, tasks) as task:
                packed = T.alloc_buffer((depth, panel), "float32", scope="global")
                acc = T.alloc_buffer((rows * columns,), "float32x16", scope="local")
                chunk, group = T.bind(task % chunks), T.bind(task // chunks % groups)
                image: list[Expr] = []
                rest = T.bind(task // (chunks * groups))
                for extent in reversed(outer):
                    image.insert(0, T.bind(rest % extent))
                    rest = T.bind(rest // extent)
                pack(packed, image, group)
                count = T.max(T.min(tall, T.ceildiv(total, rows) - chunk * tall), 0)
                with T.serial(0, count) as t:
                    tile(acc, packed, image, group, T.bind(T.min((chunk * tall + t) * rows, total - rows)))

        function = build_prim_func([*spec.inputs, *constant, bias, y], body)
        taken = -(-rows_of(spec) // chunks)
        block_size = depth * panel * 4 + taken * (depth + panel) * 4
        products = int(np.prod(np.abs(y.shape[:-2]), dtype=np.int64))
        return Kernel(function, (*constant, bias), block_size, products * groups * chunks * rows * columns)


class BatchedMatmulBf16:
    """The same in a model of bfloat16: sides and output are fp32 or bfloat16, products of blocks are bfloat16."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        blocks = batched_matmul_bf16.points(spec, features)
        vectors = BatchedMatmul().points(spec, features)
        return [*vectors, *blocks] if rows_of(spec) < FEW_ROWS else [*blocks, *vectors]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        if "unit" in point:
            return batched_matmul_bf16.build(spec, point)
        return BatchedMatmul().build(spec, point, features)
