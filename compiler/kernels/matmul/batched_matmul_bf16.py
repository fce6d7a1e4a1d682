"""Products of many small matrices on bfloat16 in blocks: both operands computed, fp32 or bfloat16 in memory.

A task takes some products, or a share of one: `panels` panels of columns of its right operand, packed in pairs of the
reduction, and a share of its rows, of which as many as a register block holds are packed at a time (or read where they
lie, if they are bfloat16 and whole tile rows). Column-major operands are transposed in registers. Rows that do not fill
the last tile move up and are computed twice; what is packed behind the end of the reduction is zero on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.bf16 import array_to_bf16
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import allocate_scratch, masked_store, vector_load
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import Expr, broadcast
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters
from veltair.compiler.kernels.matmul.amx_tiles import STEP, TILE
from veltair.compiler.kernels.matmul.batched_matmul import BatchedMatmul
from veltair.compiler.kernels.matmul.batched_operands import (
    MatrixOrder,
    max_matrix_rows,
    operand_buffers,
    operand_index,
    operand_shapes,
    unravel,
)
from veltair.compiler.kernels.matmul.bf16_microkernels import LeftOperand, Microkernel, RightOperand, open_microkernel
from veltair.compiler.kernels.matmul.matrix_unit import MatrixUnit
from veltair.compiler.kernels.matmul.pair_packing import (
    pack_left,
    pack_right,
    pack_transposed_left,
    pack_transposed_right,
)

FEW_ROWS = 4  # below this, packing costs more than blocks save; 9 x 32 x 9 in vectors takes 0.46 to 0.6 of the time
PACKED_BYTES = 256 << 10  # a task's share of the right operand at most: it stays in L2
SMALL = 1 << 16  # multiply-adds of one product of matrices, up to which a task takes several products


class BatchedMatmulBf16:
    """`BatchedMatmul` in a model of bfloat16: operands and output are fp32 or bfloat16, blocks multiply bfloat16.

    Points without a "unit" are those of `BatchedMatmul`, whose products are fp32.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x, order = Activation("x", "uint16", (2, 32, 32)), (0, 1, 2)
    >>> parameters = BatchedMatmulParameters(order, order, "", 1.0, "none")
    >>> spec = LayerSpec("product", "batched_matmul_bf16", (x, x), (x,), {}, flops=0, parameters=parameters)
    >>> BatchedMatmulBf16().points(spec, frozenset({"avx2", "avx512", "avx512_bf16", "amx_bf16"}))[0]
    {'unit': 'amx', 'panels': 1, 'chunks': 1, 'together': 8}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        blocks = _block_points(spec, features)
        vectors = BatchedMatmul().points(spec, features)
        return [*vectors, *blocks] if max_matrix_rows(spec) < FEW_ROWS else [*blocks, *vectors]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        if "unit" in point:
            return _BlockedCode(spec, point).build()
        return BatchedMatmul().build(spec, point, features)


def _block_points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """No point where neither the rows nor the columns of an operand are contiguous."""
    left, right = operand_shapes(spec)
    parameters = spec.parameters_as(BatchedMatmulParameters)
    if MatrixOrder.STRIDED in map(MatrixOrder.of_axes, (parameters.left_order, parameters.right_order)):
        return []
    depth, width, height = left[-1], right[-1], max_matrix_rows(spec)
    steps, panels_in_all = -(-depth // STEP), -(-width // (_tiles(width) * TILE))
    blocks = -(-height // (_tiles(height) * TILE))
    unit = MatrixUnit.of_cpu(features).value
    found: list[Point] = []
    sizes = [c for c in (1, 2, 4, 8, 16) if c < 2 * panels_in_all and (c == 1 or c * steps * 2048 <= PACKED_BYTES)]
    for panels in reversed(sizes):
        for chunks in (c for c in (1, 2, 4) if c <= blocks):
            small = depth * width * height <= SMALL and panels >= panels_in_all
            for together in (8, 1, 32) if small else (1,):
                found.append({"unit": unit, "panels": panels, "chunks": chunks, "together": together})
    return found


def _tiles(extent: int) -> int:
    """The tiles of a register block along an axis of this extent."""
    return 2 if extent > TILE else 1


class _BlockedCode:
    """Code of one layer at one point."""

    def __init__(self, spec: LayerSpec, point: Point) -> None:
        self.spec = spec
        self.panels, self.chunks, self.together = (int(point[name]) for name in ("panels", "chunks", "together"))
        self.unit = MatrixUnit(str(point["unit"]))
        self.depth, self.width = operand_shapes(spec)[0][-1], spec.outputs[0].shape[-1]
        self.steps = -(-self.depth // STEP)
        self.row_tiles, self.column_tiles = _tiles(max_matrix_rows(spec)), _tiles(self.width)
        self.panel = self.column_tiles * TILE
        self.panels_in_all = -(-self.width // self.panel)
        self.groups = -(-self.panels_in_all // self.panels)
        parameters = spec.parameters_as(BatchedMatmulParameters)
        self.activation, self.scale = parameters.activation, parameters.scale
        self.left_axes, self.right_axes = parameters.left_order, parameters.right_order
        self.left_order, self.right_order = map(MatrixOrder.of_axes, (self.left_axes, self.right_axes))

    def build(self) -> Kernel:
        spec, y = self.spec, self.spec.outputs[0]
        bias = pad_axis(spec.weights["bias"], 0, self.panel)
        constant = tuple(array_to_bf16(spec.weights[side]) for side in ("left", "right") if side in spec.weights)
        function = build_prim_func([*spec.inputs, *constant, bias, y], self._emit)
        rows = -(-max_matrix_rows(spec) // self.chunks)
        packed_bytes = self.panels * self.steps * self.column_tiles * 1024
        block_size = packed_bytes + rows * (self.depth * 2 + self.panels * self.panel * 4)
        products = int(np.prod(np.abs(y.shape[:-2]), dtype=np.int64))
        tasks = -(-products // self.together) * self.groups * self.chunks
        return Kernel(function, (*constant, bias), block_size, tasks * self.row_tiles * self.column_tiles)

    def _emit(self, *buffers: Any) -> None:
        self.left, self.right = operand_buffers(self.spec, buffers)
        self.bias, self.output = buffers[-2:]
        self.left_index = operand_index(self.left, self.left_axes)
        self.right_index = operand_index(self.right, self.right_axes)
        self.left_stride = self._stride_bytes() if self.depth % STEP == 0 else 0
        *outer, self.total, _ = self.output.shape
        products: Expr = 1
        for extent in outer:
            products = products * extent
        self.height = T.min(self.total, TILE)
        with T.parallel(0, T.ceildiv(products, self.together) * (self.groups * self.chunks)) as task:
            self._allocate()
            chunk, self.group = T.bind(task % self.chunks), T.bind(task // self.chunks % self.groups)
            begin = T.bind(task // (self.chunks * self.groups) * self.together)
            with (
                open_microkernel(self.unit, T.bind(self.height)) as multiply,
                T.serial(0, T.min(self.together, products - begin)) as nth,
            ):
                self.image = unravel(T.bind(begin + nth), outer)
                self._emit_product(chunk, multiply)

    def _allocate(self) -> None:
        self.packed = allocate_scratch((self.panels, self.steps, self.column_tiles, TILE, TILE), "uint32")
        self.rows = None if self.left_stride else allocate_scratch((self.row_tiles * TILE, self.steps * STEP), "uint16")
        self.sums = allocate_scratch((self.row_tiles * TILE, self.panel), "float32")

    def _emit_product(self, chunk: Expr, multiply: Microkernel) -> None:
        """A chunk of the rows times a group of the panels of one product of matrices."""
        block_rows = self.row_tiles * TILE
        blocks = T.ceildiv(self.total, block_rows)
        share = T.ceildiv(blocks, self.chunks)
        panels = T.bind(T.min(self.panels, self.panels_in_all - self.group * self.panels))
        self._pack_right(panels)
        with T.serial(0, T.max(T.min(share, blocks - chunk * share), 0)) as block:
            start = (chunk * share + block) * block_rows
            first_rows = [
                T.bind(T.max(T.min(start + half * TILE, self.total - TILE), 0)) for half in range(self.row_tiles)
            ]
            left = self._left_operand(first_rows)
            with T.serial(0, panels) as p:
                right = RightOperand(self.packed, lambda tile, step: (p, step, tile))
                multiply(self.sums, 0, left, right, self.steps, self.row_tiles, self.column_tiles)
                for half, row in enumerate(first_rows):
                    self._store_tile_rows(half, row, p)

    def _pack_right(self, panels: Expr) -> None:
        pack = pack_right if self.right_order is MatrixOrder.ROW_MAJOR else pack_transposed_right
        index = partial(self.right_index, self.image)
        with T.grid(panels, self.column_tiles) as (p, tile):
            first = T.bind(((self.group * self.panels + p) * self.column_tiles + tile) * TILE)
            with when(first < self.width):
                pack(self.right, index, first, self.width, self.depth, self.packed, p, tile)

    def _left_operand(self, first_rows: Sequence[Expr]) -> LeftOperand:
        """The rows of a block where they lie, or packed."""
        if self.left_stride:
            image = self.image
            return LeftOperand(
                self.left, lambda half, r, k: self.left_index(image, first_rows[half] + r, k), self.left_stride
            )
        index = partial(self.left_index, self.image)
        for half, row in enumerate(first_rows):
            to = half * TILE
            if self.left_order is MatrixOrder.ROW_MAJOR:
                pack_left(self.left, index, row, self.height, self.depth, self.rows, to)
            else:
                least = abs(self.spec.outputs[0].shape[-2])
                pack_transposed_left(self.left, index, row, self.height, least, self.depth, self.rows, to)
        return LeftOperand(self.rows, lambda half, r, k: (half * TILE + r, k), self.steps * STEP * 2)

    def _store_tile_rows(self, half: int, row: Expr, p: Expr) -> None:
        """The epilogue of the sums of one tile of rows, the first of which is `row` of the output."""
        with T.serial(0, self.height) as r:
            for tile in range(self.column_tiles):
                column = T.bind((self.group * self.panels + p) * self.panel + tile * TILE)
                with when(column < self.width):
                    value = vector_load(self.sums, half * TILE + r, tile * TILE)
                    value = value * broadcast(self.scale) + vector_load(self.bias, column)
                    value = T.bind(apply_activation(value, self.activation))
                    masked_store(self.output, value, *self.image, row + r, column, width=self.width)

    def _stride_bytes(self) -> int:
        """The bytes between rows of a left operand that is read where it lies; 0 where it must be packed."""
        behind = self.left.shape[self.left_axes[-2] + 1 :]
        known = all(isinstance(extent, (int, T.IntImm)) for extent in behind)
        if self.left.dtype != "uint16" or self.left_order is not MatrixOrder.ROW_MAJOR or not known:
            return 0
        return 2 * int(np.prod([int(extent) for extent in behind]))
