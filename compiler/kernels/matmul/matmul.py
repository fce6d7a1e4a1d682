"""Matrix product with constant weights in vectors, rows of any batch: of fp32, or of bfloat16 in pairs.

A register tile is `rows` x `columns` vectors of 16; a task takes one group of columns and `tall` tiles of rows.
Rows that fill no tile are done one by one. Many rows have another algorithm beside it (`matmul_blocked`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import vector_load
from veltair.compiler.kernels.codegen.multiply_add import (
    VALUES_PER_STEP,
    broadcast_input,
    multiply_add,
    reduction_body,
    reduction_steps,
)
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.matmul.matmul_blocked import blocked_points, matmul_blocked
from veltair.compiler.kernels.matmul.matmul_operands import matmul_rows, packed_panels, sides_of, store_outputs

# Register tiles (columns in vectors, rows) that leave room for the weights and an input; of one row, the weights are
# operands in memory. AVX2 has half as many registers, and a vector takes two.
AVX512_TILES = ((4, 6), (4, 4), (4, 1), (2, 6), (2, 12), (2, 4), (2, 1), (1, 6), (1, 12), (1, 4), (1, 1))
AVX2_TILES = ((1, 6), (1, 4), (4, 1), (2, 1), (1, 1))
MANY = 16  # rows, at the greatest batch, that are worth copying


class Matmul:
    """inputs: x (M, K)[, gate (M, N)][, residual (M, N)]; weights: weight (K, N), bias (N); output (M, N).

    M may depend on the batch. Attributes: `storage`, how weights lie in memory, "fp32" or "bf16" (products are fp32 in
    both); `gated`: there is a gate, which sums with their bias are multiplied by before the residual is added.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        rows_in = matmul_rows(spec)
        vectors = -(-spec.outputs[0].shape[1] // LANES)
        many = rows_in >= MANY and spec.attributes.get("storage") != "bf16"
        found = blocked_points(spec, features) if many else []
        for columns, rows in AVX512_TILES if "avx512" in features else AVX2_TILES:
            if rows > max(rows_in, 1) or columns > vectors:
                continue
            for tall in (1, 4, 16):
                if tall == 1 or rows * tall < 2 * rows_in:
                    found.append({"columns": columns, "rows": rows, "tall": tall})
        return found or [{"columns": 1, "rows": 1, "tall": 1}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        if "panels" in point:
            return matmul_blocked(spec, point)
        x, y = spec.inputs[0], spec.outputs[0]
        depth, width = x.shape[1], y.shape[1]
        columns, rows, tall = int(point["columns"]), int(point["rows"]), int(point["tall"])
        panel = columns * LANES
        packed = packed_panels(spec, panel)
        groups = len(packed)
        bias = pad_axis(spec.weights["bias"], 0, panel)
        activation = str(spec.attributes["activation"])
        step = rows * tall

        def body(X: Any, *rest: Any) -> None:
            sides = sides_of(spec, rest)
            W, bias_, Y = rest[-3:]
            total = X.shape[0]

            def tile(acc: Any, group: Expr, row: Expr, count: int) -> None:
                for c in range(columns):
                    start = T.bind(vector_load(bias_, group * panel + c * LANES))
                    for r in range(count):
                        T.buffer_store(acc, start, [r * columns + c])
                for k, taken in reduction_steps(depth, X.dtype):
                    taps = [T.bind(vector_load(W, group, k, c * LANES)) for c in range(columns)]
                    for r in range(count):
                        value = T.bind(broadcast_input(X, row + r, k * VALUES_PER_STEP[X.dtype], count=taken))
                        for c in range(columns):
                            at = r * columns + c
                            T.buffer_store(acc, multiply_add(acc[at], value, taps[c]), [at])
                for r in range(count):
                    for c in range(columns):
                        column = T.bind(group * panel + c * LANES)
                        with when(column < width):
                            store_outputs(Y, acc[r * columns + c], sides, activation, row + r, column, width)

            chunks = T.ceildiv(total, step)
            with T.parallel(0, groups * chunks) as task:
                acc = T.alloc_buffer((rows * columns,), "float32x16", scope="local")
                group, chunk = T.bind(task // chunks), T.bind(task % chunks)
                with T.serial(0, T.max(T.min(step, total - chunk * step), 0) // rows) as t:
                    tile(acc, group, chunk * step + t * rows, rows)
                if rows > 1:
                    rest = T.bind(T.min(step, total - chunk * step) % rows)
                    with T.serial(0, rest) as r:
                        row = T.min((chunk + 1) * step, total) - rest + r
                        tile(acc, group, row, 1)

        function = build_prim_func([*spec.inputs, packed, bias, y], reduction_body(x.dtype, body))
        taken = min(step, matmul_rows(spec))
        block_size = packed[0].nbytes + taken * (depth + panel) * np.dtype(x.dtype).itemsize
        parallelism = groups * -(-matmul_rows(spec) // step) * rows * columns
        return Kernel(function, (packed, bias), block_size, parallelism)
