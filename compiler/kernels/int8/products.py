"""Products and convolutions of 8-bit integers: register tiles of rows by vectors of 16 columns, sums in int32.

Weights lie in panels, four neighbours of the reduction in one int32. A convolution that is more than a product at every
place copies the windows of a task's outputs to rows first (`window_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.int8_dot_product import QUAD, add_quads, broadcast_quad, import_int8_dot
from veltair.compiler.codegen.memory import allocate_scratch
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten
from veltair.compiler.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.quantised import QuantisedProductParameters
from veltair.compiler.kernels.int8.epilogue import PADDING, epilogue_weights
from veltair.compiler.kernels.int8.product_operands import ProductOperands, rows_and_width
from veltair.compiler.kernels.int8.products_amx import build_amx_product
from veltair.compiler.kernels.int8.starting_sums import load_start, starting_sums, unsigned_shift
from veltair.compiler.kernels.int8.tile_points import amx_points, is_possible
from veltair.compiler.kernels.int8.window_rows import copy_windows

# Register tiles (columns in vectors, rows); with AVX2 a vector takes two registers, and widened weights two more.
AVX512_TILES = ((4, 6), (2, 12), (2, 6), (4, 4), (1, 12), (4, 1), (1, 6), (2, 1), (1, 1))
AVX2_TILES = ((1, 4), (1, 2), (2, 1), (1, 1))
MOST_SCRATCH = 1 << 18  # bytes of the windows of a task: they stay in L2


class QuantisedProduct:
    """inputs: x (M, K) uint8 or int8[, scale (), zero point ()][, residual (M, N)]; output (M, N) of 8 bits or fp32.

    Of "conv2d_int8" x, residual and output are (N, C, H, W) in one block of all channels. weights: weight (K, N) int8,
    K over rows and columns of the window and then channels of a group; of wide weights int16, and "weight_zero" (N)
    int32 with all weights - weight_zero in int8; scale, bias[, added] (N); input, output, between, residual: scale and
    zero point. Parameters: `QuantisedProductParameters`. Of several groups each has a multiple of 4 channels and of 16
    columns.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x, y = Activation("x", "uint8", (-1, 64)), Activation("y", "uint8", (-1, 32))
    >>> spec = LayerSpec("d", "matmul_int8", (x,), (y,), {}, 0, 8, QuantisedProductParameters("relu"))
    >>> QuantisedProduct().points(spec, frozenset({"avx2", "avx512"}))[0]
    {'columns': 2, 'rows': 6, 'tall': 1, 'panels': 1}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        parameters = spec.parameters_as(QuantisedProductParameters)
        rows, width = rows_and_width(spec.outputs[0])
        window, groups = parameters.window, parameters.groups
        rows, vectors = spec.most(rows), -(-width // groups // LANES)
        gathered = window is not None and not window.is_point
        depth = prod(window.kernel) * spec.inputs[0].shape[1] if window else 0
        found: list[Point] = amx_points(spec) if "amx_int8" in features and is_possible(spec) else []
        for columns, tile in AVX512_TILES if "avx512" in features else AVX2_TILES:
            if tile > max(rows, 1) or columns > vectors:
                continue
            panels = groups * -(-vectors // columns)
            for tall in (4, 1, 16):
                if tall > 1 and (tile * tall >= 2 * rows or (gathered and tile * tall * depth > MOST_SCRATCH)):
                    continue
                for taken in sorted({panels, -(-panels // 2)}, reverse=True) if gathered else (1,):
                    found.append({"columns": columns, "rows": tile, "tall": tall, "panels": taken})
        return found or [{"columns": 1, "rows": 1, "tall": 1, "panels": 1}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        if point.get("unit") == "amx":
            return build_amx_product(spec, point)
        columns, rows, tall, panels = (int(point[name]) for name in ("columns", "rows", "tall", "panels"))
        panel, step = columns * LANES, rows * tall
        packed, start = pack_quads(spec, panel)
        weights = [packed, start, *_wide_weights(spec, panel), *epilogue_weights(spec, panel)]

        def body(*buffers: Any) -> None:
            with import_int8_dot(features):
                _ProductCode(spec, point, buffers, len(packed)).emit()

        function = build_prim_func([*spec.inputs, *weights, spec.outputs[0]], body)
        depth, most = len(spec.weights["weight"]), spec.most(rows_and_width(spec.outputs[0])[0])
        block_size = packed[0].nbytes + min(step, most) * (depth + panel * panels)
        parallelism = -(-len(packed) // panels) * -(-most // step) * rows * columns
        return Kernel(function, tuple(weights), block_size, parallelism)


def pack_quads(spec: LayerSpec, panel: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Weights (panels, K / 4, panel) of four bytes each, and the `starting_sums`.

    A dynamic layer learns the zero point when it runs: its sums start from minus the weights' sums times that. Panels
    of one group follow another's.
    """
    parameters, weight = spec.parameters_as(QuantisedProductParameters), spec.weights["weight"]
    sums = starting_sums(spec, unsigned_shift(spec.inputs[0].dtype))
    if parameters.wide:
        weight = (weight - spec.weights["weight_zero"]).astype(np.int8)
    groups = np.split(pad_axis(weight, 0, QUAD), parameters.groups, axis=1)
    weight = np.concatenate([pad_axis(group, 1, panel) for group in groups], axis=1)
    quads = weight.reshape(len(weight) // QUAD, QUAD, -1, panel).transpose(2, 0, 3, 1)
    packed = np.ascontiguousarray(quads).view(np.int32)[..., 0]
    return packed, _columns(sums, panel, parameters.groups)


def _columns(values: NDArray[Any], panel: int, groups: int) -> NDArray[np.int32]:
    """Numbers of columns, and zeros as far as the last panel of the last group reaches."""
    return np.pad(values, (0, -(len(values) // groups) % panel)).astype(np.int32)


def _wide_weights(spec: LayerSpec, panel: int) -> list[NDArray[np.int32]]:
    """The factors of wide weights: what the sum of a row of inputs is to be multiplied by for each column, and the ones
    by which that sum is a product too: four in each step of the reduction, zeros behind its end.
    """
    parameters = spec.parameters_as(QuantisedProductParameters)
    if not parameters.wide:
        return []
    ones = pad_axis(np.ones(len(spec.weights["weight"]), np.int8), 0, QUAD).view(np.int32)
    return [_columns(spec.weights["weight_zero"], panel, parameters.groups), ones]


class _ProductCode:
    def __init__(self, spec: LayerSpec, point: Point, buffers: Sequence[Any], panels: int) -> None:
        self.spec, self.parameters = spec, spec.parameters_as(QuantisedProductParameters)
        self.columns, self.rows = int(point["columns"]), int(point["rows"])
        self.step, self.taken = self.rows * int(point["tall"]), int(point["panels"])
        self.panel, self.panels = self.columns * LANES, panels
        self.depth = len(spec.weights["weight"])
        self.width = spec.outputs[0].physical[-1]
        self.window, self.groups = self.parameters.window, self.parameters.groups
        self.of_group = self.width // self.groups  # columns
        self.gathered = self.window is not None and not self.window.is_point
        operands = ProductOperands.of(spec, buffers, others=2 if self.parameters.wide else 0)
        self.X, self.W, self.start, self.wide = operands.x, operands.weight, operands.start, operands.others
        self.source = flatten(buffers[0]) if self.gathered else None
        self.numbers, self.zero = operands.numbers, operands.zero
        self.total, self.epilogue = operands.total, operands.epilogue

    def emit(self) -> None:
        total, step = self.total, self.step
        groups, chunks = -(-self.panels // self.taken), T.ceildiv(total, step)
        with T.parallel(0, groups * chunks) as task:
            self.sums = T.alloc_buffer((self.rows * self.columns,), "int32x16", scope="local")
            self.row_sums: Any = T.alloc_buffer((self.rows,), "int32x16", scope="local") if self.wide else None
            self.finished = allocate_scratch((self.rows, self.panel), "int32")
            group, chunk = T.bind(task // chunks), T.bind(task % chunks)
            first = T.bind(chunk * step)
            count = T.bind(T.min(step, total - first))
            source, begin = self.X, first
            if self.gathered:
                assert self.window is not None
                source, begin = self._gather(first, count), T.int32(0)
            taken = self.taken if self.panels % self.taken == 0 else T.min(self.taken, self.panels - group * self.taken)
            with T.serial(0, taken) as p:
                panel = T.bind(group * self.taken + p)
                with T.serial(0, count // self.rows) as t:
                    self._tile(source, begin, panel, first, t * self.rows, self.rows)
                if self.rows > 1:
                    with T.serial(0, count % self.rows) as r:
                        self._tile(source, begin, panel, first, count - count % self.rows + r, 1)

    def _gather(self, first: Expr, count: Expr) -> Any:
        assert self.window is not None
        x, y = self.spec.inputs[0], self.spec.outputs[0]
        rows = allocate_scratch((self.step, -(-self.depth * self.groups // QUAD) * QUAD), x.dtype)
        zero = T.cast(self.numbers[PADDING], "int32") if self.zero is None else self.zero[0]
        padding = T.bind(T.cast(zero, x.dtype))
        copy_windows(self.source, rows, padding, (x, y), self.window, first, count)
        return rows

    def _tile(self, source: Any, begin: Expr, panel: Expr, first: Expr, row: Expr, count: int) -> None:
        """`count` rows, from `row` of the task on, times the panel."""
        sums, row_sums, columns = self.sums, self.row_sums, self.columns
        panels = self.panels // self.groups  # of a group
        group, within = T.bind(panel // panels), T.bind(panel % panels * self.panel)
        left = T.bind(group * self.of_group + within)  # the first column
        shift = unsigned_shift(self.spec.inputs[0].dtype)
        for c in range(columns):
            start = T.bind(load_start(self.start, left + c * LANES, self.zero, shift))
            for r in range(count):
                T.buffer_store(sums, start, [r * columns + c])
        for r in range(count if self.wide else 0):
            T.buffer_store(row_sums, T.broadcast(T.int32(0), LANES), [r])

        def step(k: Expr, at: Expr, size: int) -> None:
            """at: where the inputs of a row lie."""
            weights = [T.bind(self.W[panel, k, ramp(c * LANES)]) for c in range(columns)]
            ones = T.bind(T.broadcast(self.wide[1][k], LANES)) if self.wide else None
            for r in range(count):
                value = T.bind(broadcast_quad(source, begin + row + r, at, count=size))
                for c in range(columns):
                    place = r * columns + c
                    T.buffer_store(sums, add_quads(sums[place], value, weights[c]), [place])
                if self.wide:
                    T.buffer_store(row_sums, add_quads(row_sums[r], value, ones), [r])

        if self.groups > 1:
            channels = self.spec.inputs[0].shape[1]
            each = channels // self.groups // QUAD
            with T.grid(self.depth // (each * QUAD), each) as (tap, quad):
                step(tap * each + quad, tap * channels + (group * each + quad) * QUAD, QUAD)
        else:
            whole = -(-self.depth // QUAD) if self.gathered else self.depth // QUAD
            if whole:
                with T.serial(0, whole) as k:
                    step(k, k * QUAD, QUAD)
            if not self.gathered and self.depth % QUAD:
                step(T.int32(whole), T.int32(whole * QUAD), self.depth % QUAD)
        for r in range(count):
            for c in range(columns):
                value = sums[r * columns + c]
                if self.wide:
                    value = value + row_sums[r] * self.wide[0][ramp(left + c * LANES)]
                T.buffer_store(self.finished, value, [r, ramp(c * LANES)])
        # A loop: unrolled, the epilogue would stand in the code once for each vector of the tile.
        with T.grid(count, columns) as (r, c), when(within + c * LANES < self.of_group):
            self.epilogue.store(T.bind(self.finished[r, ramp(c * LANES)]), first + row + r, T.bind(left + c * LANES))
