"""Products of many small matrices in fp32: both operands computed, batch dimensions broadcast, transposes by index.

A task takes one product, a panel of `columns` vectors of its columns and a share of its rows. It packs its panel of the
right operand into scratch memory (transposed in registers where that is column-major), then computes register tiles of
`rows` rows. A last tile that would reach past the rows begins earlier and computes some of them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import masked_store, vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.transpose import transpose_16x16
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters
from veltair.compiler.kernels.matmul.batched_operands import (
    MatrixOrder,
    max_matrix_rows,
    operand_buffers,
    operand_index,
    operand_shapes,
    unravel,
)


class BatchedMatmul:
    """output = activation(scale * left @ right + bias). inputs: left, right, or the one of them that is not among the
    weights; weights: left or right, bias (N).

    The orders of the operands are the transposes that make (…, M, K) and (…, K, N) of them. Parameters:
    `BatchedMatmulParameters`.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x = Activation("x", "float32", (2, 32, 32))
    >>> spec = LayerSpec("product", "batched_matmul", (x, x), (x,), {}, flops=0)
    >>> BatchedMatmul().points(spec, frozenset({"avx2"}))[0]
    {'columns': 1, 'rows': 6, 'chunks': 1}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        height, width = max_matrix_rows(spec), spec.outputs[0].shape[-1]
        vectors = -(-width // LANES)
        registers, per_vector = (30, 1) if "avx512" in features else (14, 2)
        costs: list[tuple[float, Point]] = []
        least = abs(spec.outputs[0].shape[-2])  # rows that there always are
        for columns in (c for c in (4, 3, 2, 1) if c <= vectors and 2 * c * per_vector <= registers):
            most = min(registers // per_vector // columns - 1, least)
            for rows in sorted({most, -(-most * 2 // 3)}):
                tiles = -(-height // rows)
                step = max(rows * columns / 2, (rows + columns) / 2, 4.0) * per_vector
                cost = -(-vectors // columns) * tiles * step
                for chunks in (c for c in (1, 2, 4) if c == 1 or 2 * c <= tiles):
                    point: Point = {"columns": columns, "rows": rows, "chunks": chunks}
                    costs.append((cost * (1 + 0.05 * chunks), point))
        best = min(cost for cost, _ in costs)
        return [point for cost, point in sorted(costs, key=lambda pair: pair[0]) if cost < 2 * best]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y = spec.outputs[0]
        columns, rows, chunks = (int(point[name]) for name in ("columns", "rows", "chunks"))
        panel, depth = columns * LANES, operand_shapes(spec)[0][-1]
        groups = -(-y.shape[-1] // panel)
        bias = pad_axis(spec.weights["bias"], 0, panel)
        constant = tuple(spec.weights[side] for side in ("left", "right") if side in spec.weights)

        def body(*buffers: Any) -> None:
            _BatchedMatmulCode(spec, point, buffers).emit()

        function = build_prim_func([*spec.inputs, *constant, bias, y], body)
        taken = -(-max_matrix_rows(spec) // chunks)
        block_size = depth * panel * 4 + taken * (depth + panel) * 4
        products = int(np.prod(np.abs(y.shape[:-2]), dtype=np.int64))
        return Kernel(function, (*constant, bias), block_size, products * groups * chunks * rows * columns)


class _BatchedMatmulCode:
    def __init__(self, spec: LayerSpec, point: Point, buffers: Sequence[Any]) -> None:
        parameters = spec.parameters_as(BatchedMatmulParameters)
        self.columns, self.rows, self.chunks = (int(point[name]) for name in ("columns", "rows", "chunks"))
        self.panel, self.width = self.columns * LANES, spec.outputs[0].shape[-1]
        self.groups = -(-self.width // self.panel)
        self.depth = operand_shapes(spec)[0][-1]
        self.activation, self.scale = parameters.activation, parameters.scale
        self.left, self.right = operand_buffers(spec, buffers)
        self.bias, self.output = buffers[-2:]
        self.left_index = operand_index(self.left, parameters.left_order)
        self.right_index = operand_index(self.right, parameters.right_order)
        self.right_order = MatrixOrder.of_axes(parameters.right_order)

    def emit(self) -> None:
        *outer, total, _ = self.output.shape
        tiles = T.ceildiv(T.ceildiv(total, self.rows), self.chunks)  # of a task
        tasks = self.groups * self.chunks
        for extent in outer:
            tasks = tasks * extent
        with T.parallel(0, tasks) as task:
            self.packed = T.alloc_buffer((self.depth, self.panel), "float32", scope="global")
            self.sums = T.alloc_buffer((self.rows * self.columns,), "float32x16", scope="local")
            chunk, self.group = T.bind(task % self.chunks), T.bind(task // self.chunks % self.groups)
            self.image = unravel(T.bind(task // (self.chunks * self.groups)), outer)
            self._pack_right()
            count = T.max(T.min(tiles, T.ceildiv(total, self.rows) - chunk * tiles), 0)
            with T.serial(0, count) as t:
                self._emit_tile(T.bind(T.min((chunk * tiles + t) * self.rows, total - self.rows)))

    def _pack_right(self) -> None:
        """Pack the panel of the right operand, with zeros in columns behind the last."""
        first = T.bind(self.group * self.panel)
        if self.right_order is MatrixOrder.ROW_MAJOR:
            self._pack_rows(first)
        else:
            self._pack_columns(first)

    def _pack_rows(self, first: Expr) -> None:
        with T.serial(0, self.depth) as k, T.serial(0, self.columns) as c:
            with when(first + (c + 1) * LANES <= self.width):
                value = vector_load(self.right, *self.right_index(self.image, k, first + c * LANES))
                vector_store(self.packed, value, k, c * LANES)
            if self.width % LANES:
                with when(first + (c + 1) * LANES > self.width), T.serial(0, LANES) as lane:
                    self._pack_element(first, k, c * LANES + lane)

    def _pack_columns(self, first: Expr) -> None:
        """16 x 16 at a time where the operand is column-major, as far as the reduction goes in whole vectors."""
        column_major = self.right_order is MatrixOrder.COLUMN_MAJOR
        transposed = self.depth - self.depth % LANES if column_major else 0
        with T.serial(0, self.columns) as c:
            if transposed:
                with when(first + (c + 1) * LANES <= self.width), T.serial(0, transposed // LANES) as step:
                    columns = [first + c * LANES + i for i in range(LANES)]
                    indices = [self.right_index(self.image, step * LANES, column) for column in columns]
                    lines = [T.bind(vector_load(self.right, *index)) for index in indices]
                    for i, line in enumerate(transpose_16x16(lines)):
                        vector_store(self.packed, line, step * LANES + i, c * LANES)
                with when(first + (c + 1) * LANES > self.width), T.grid(transposed, LANES) as (k, lane):
                    self._pack_element(first, k, c * LANES + lane)
            if self.depth > transposed:
                with T.grid(self.depth - transposed, LANES) as (k, lane):
                    self._pack_element(first, transposed + k, c * LANES + lane)

    def _pack_element(self, first: Expr, k: Expr, c: Expr) -> None:
        with when(first + c < self.width):
            value = vector_load(self.right, *self.right_index(self.image, k, first + c), count=1)
            T.buffer_store(self.packed, value, [k, c])
        with when(first + c >= self.width):
            T.buffer_store(self.packed, T.float32(0), [k, c])

    def _emit_tile(self, row: Expr) -> None:
        """One register tile, from `row` on."""
        sums, columns = self.sums, self.columns
        for i in range(self.rows * columns):
            T.buffer_store(sums, broadcast(0.0), [i])
        with T.serial(0, self.depth) as k:
            weights = [T.bind(vector_load(self.packed, k, c * LANES)) for c in range(columns)]
            for r in range(self.rows):
                index = self.left_index(self.image, row + r, k)
                value = T.bind(broadcast(vector_load(self.left, *index, count=1)))
                for c in range(columns):
                    at = r * columns + c
                    T.buffer_store(sums, sums[at] + value * weights[c], [at])
        for r in range(self.rows):
            for c in range(columns):
                column = T.bind(self.group * self.panel + c * LANES)
                with when(column < self.width):
                    value = sums[r * columns + c] * broadcast(self.scale) + vector_load(self.bias, column)
                    value = T.bind(apply_activation(value, self.activation))
                    masked_store(self.output, value, *self.image, row + r, column, width=self.width)
