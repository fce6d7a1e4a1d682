"""Matrix product with constant weights in vectors, rows of any batch: of fp32, or of bfloat16 in pairs.

A register tile is `rows` x `columns` vectors of 16; a task takes one panel of columns and `tall` tiles of rows. Rows
that fill no tile are computed one by one. Many rows have a second algorithm (`matmul_blocked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import divide_in_registers, index_in_register, vector_load
from veltair.compiler.codegen.multiply_add import (
    VALUES_PER_STEP,
    broadcast_input,
    multiply_add,
    reduction_body,
    reduction_steps,
)
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.products import MatmulParameters, WeightStorage
from veltair.compiler.kernels.matmul.matmul_blocked import BlockedMatmul, blocked_points
from veltair.compiler.kernels.matmul.matmul_operands import MatmulEpilogue, max_rows, pack_panels

# Register tiles (columns in vectors, rows) that leave room for the weights and an input; of one row, the weights are
# operands in memory. AVX2 has half as many registers, and a vector takes two.
AVX512_TILES = ((4, 6), (4, 4), (4, 1), (2, 6), (2, 12), (2, 4), (2, 1), (1, 6), (1, 12), (1, 4), (1, 1))
AVX2_TILES = ((1, 6), (1, 4), (4, 1), (2, 1), (1, 1))
MANY_ROWS = 16  # at the greatest batch: from here on, copying rows pays


class Matmul:
    """output = activation((x @ weight + bias) [* gate] [+ residual]). inputs: x (M, K)[, gate (M, N)][, residual (M,
    N)]; weights: weight (K, N), bias (N); output (M, N).

    M may depend on the batch. Products are fp32, however the weights lie in memory. Parameters: `MatmulParameters`.
    Points with "panels" are those of `BlockedMatmul`.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x, y = Activation("x", "float32", (-1, 64)), Activation("y", "float32", (-1, 32))
    >>> parameters = MatmulParameters("relu", WeightStorage.FP32)
    >>> spec = LayerSpec("dense", "matmul", (x,), (y,), {}, flops=0, parameters=parameters)
    >>> Matmul().points(spec, frozenset({"avx2"}))[0]
    {'columns': 2, 'rows': 1, 'tall': 1}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        rows_in = max_rows(spec)
        vectors = -(-spec.outputs[0].shape[1] // LANES)
        storage = spec.parameters_as(MatmulParameters).storage
        blocked = rows_in >= MANY_ROWS and storage is not WeightStorage.BF16
        found = blocked_points(spec, features) if blocked else []
        for columns, rows in AVX512_TILES if "avx512" in features else AVX2_TILES:
            if rows > max(rows_in, 1) or columns > vectors:
                continue
            for tall in (1, 4, 16):
                if tall == 1 or rows * tall < 2 * rows_in:
                    found.append({"columns": columns, "rows": rows, "tall": tall})
        return found or [{"columns": 1, "rows": 1, "tall": 1}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        if "panels" in point:
            return BlockedMatmul(spec, point).build()
        x, y = spec.inputs[0], spec.outputs[0]
        columns, rows, tall = (int(point[name]) for name in ("columns", "rows", "tall"))
        panel, step = columns * LANES, rows * tall
        packed = pack_panels(spec, panel)
        bias = pad_axis(spec.weights["bias"], 0, panel)

        def body(*buffers: Any) -> None:
            _MatmulCode(spec, point, buffers).emit(len(packed))

        function = build_prim_func([*spec.inputs, packed, bias, y], reduction_body(x.dtype, body))
        taken = min(step, max_rows(spec))
        block_size = packed[0].nbytes + taken * (x.shape[1] + panel) * np.dtype(x.dtype).itemsize
        parallelism = len(packed) * -(-max_rows(spec) // step) * rows * columns
        return Kernel(function, (packed, bias), block_size, parallelism)


class _MatmulCode:
    def __init__(self, spec: LayerSpec, point: Point, buffers: Sequence[Any]) -> None:
        self.columns, self.rows = int(point["columns"]), int(point["rows"])
        self.step = self.rows * int(point["tall"])  # rows of a task
        self.panel = self.columns * LANES
        self.depth, self.width = spec.inputs[0].shape[1], spec.outputs[0].shape[1]
        self.X, *rest = buffers
        self.W, self.bias = rest[-3:-1]
        self.epilogue = MatmulEpilogue.of_layer(spec, rest)

    def emit(self, panels: int) -> None:
        total, step = self.X.shape[0], self.step
        chunks = T.ceildiv(total, step)
        with T.parallel(0, panels * chunks) as task:
            self.sums = T.alloc_buffer((self.rows * self.columns,), "float32x16", scope="local")
            panel, chunk = divide_in_registers(task, chunks)
            first = index_in_register(chunk * step)
            full, rest = divide_in_registers(T.max(T.min(step, total - first), 0), T.int32(self.rows))
            with T.serial(0, full) as t:
                self._emit_tile(panel, first + t * self.rows, self.rows)
            if self.rows > 1:
                with T.serial(0, rest) as r:
                    self._emit_tile(panel, first + full * self.rows + r, 1)

    def _emit_tile(self, panel: Expr, row: Expr, count: int) -> None:
        """`count` rows from `row` on, times the panel."""
        sums, columns = self.sums, self.columns
        for c in range(columns):
            start = T.bind(vector_load(self.bias, panel * self.panel + c * LANES))
            for r in range(count):
                T.buffer_store(sums, start, [r * columns + c])
        for k, taken in reduction_steps(self.depth, self.X.dtype):
            weights = [T.bind(vector_load(self.W, panel, k, c * LANES)) for c in range(columns)]
            for r in range(count):
                value = T.bind(broadcast_input(self.X, row + r, k * VALUES_PER_STEP[self.X.dtype], count=taken))
                for c in range(columns):
                    at = r * columns + c
                    T.buffer_store(sums, multiply_add(sums[at], value, weights[c]), [at])
        for r in range(count):
            for c in range(columns):
                column = T.bind(panel * self.panel + c * LANES)
                with when(*self.epilogue.inside(column, self.panel)):
                    self.epilogue.store(sums[r * columns + c], row + r, column)
