"""Matrix product with constant weights and many rows in vectors, blocked for caches as in BLIS (Van Zee et al. 2015).

A task takes `panels` panels of weights for a chunk of rows. It copies a stretch of the depth of its rows side by side,
so that no two of them compete for one set of a cache, and lets all tiles of rows pass the same stretch of one panel,
which stays in L1, while they fetch the next one's; sums are kept between stretches. Rows that fill no tile are computed
four by four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import (
    allocate_scratch,
    divide_in_registers,
    index_in_register,
    prefetch,
    vector_load,
    vector_store,
)
from veltair.compiler.codegen.multiply_add import VALUES_PER_STEP, broadcast_input, multiply_add, reduction_body
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.matmul.matmul_operands import MatmulEpilogue, max_rows, pack_panels

FEW = 4  # rows of a small tile


def blocked_points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """A register tile of `columns` vectors x `rows`; at most `tall` of them a chunk, `panels` a task; `stretch`.

    Tiles of 4 x 6 and 3 x 8 vectors were never more than 2 % faster than 2 x 12.
    """
    rows_in = max_rows(spec)
    vectors = -(-spec.outputs[0].shape[1] // LANES)
    columns, rows = (2, 12) if "avx512" in features else (1, 6)
    if rows > rows_in or columns > vectors:
        return []
    count = -(-vectors // columns)
    panels = dict.fromkeys(-(-count // share) for share in (2, 1, 4, 8))
    heights = [height for height in (252, 132, 60) if height == 60 or height < 2 * rows_in]
    return [
        {"columns": columns, "rows": rows, "tall": height // rows, "panels": each, "stretch": stretch}
        for height in heights
        for stretch in (256, 512)
        for each in panels
    ]


class BlockedMatmul:
    """Code and packed weights of one layer at one point of `blocked_points`.

    ::

        point = {"columns": 2, "rows": 12, "tall": 5, "panels": 3, "stretch": 256}
        kernel = BlockedMatmul(spec, point).build()
    """

    def __init__(self, spec: LayerSpec, point: Point) -> None:
        self.spec = spec
        self.columns, self.rows, tall, self.panels = (
            int(point[name]) for name in ("columns", "rows", "tall", "panels")
        )
        self.panel, self.step = self.columns * LANES, self.rows * tall  # columns of a panel; rows of a chunk
        self.depth = spec.inputs[0].shape[1]
        self.weight = pack_panels(spec, self.panel)
        self.groups = -(-len(self.weight) // self.panels)
        blocks = -(-self.depth // int(point["stretch"]))
        self.stretch = -(-self.depth // blocks // LANES) * LANES  # all of them about equal
        self.blocks = -(-self.depth // self.stretch)  # stretches of the depth
        self.values_per_step = VALUES_PER_STEP[spec.inputs[0].dtype]

    def build(self) -> Kernel:
        spec = self.spec
        bias = pad_axis(spec.weights["bias"], 0, self.panel)

        def body(*buffers: Any) -> None:
            _Task(self, buffers).emit()

        emit = reduction_body(spec.inputs[0].dtype, body)
        function = build_prim_func([*spec.inputs, self.weight, bias, spec.outputs[0]], emit)
        taken, item = min(self.step, max_rows(spec)), 4 // self.values_per_step
        sums = taken * (self.panels * self.panel if self.blocks > 1 else 0) * 4
        block_size = (self.panel + taken) * self.stretch * item + sums
        parallelism = self.groups * -(-max_rows(spec) // self.step) * self.rows * self.columns
        return Kernel(function, (self.weight, bias), block_size, parallelism)


class _Stretch(NamedTuple):
    """A part of the reduction."""

    first: Expr
    extent: Expr


class _Task:
    """Emits the code of a parallel task: a group of panels times a chunk of the rows."""

    def __init__(self, matmul: BlockedMatmul, buffers: Sequence[Any]) -> None:
        self.matmul = matmul
        self.X, *rest = buffers
        self.W, self.bias = rest[-3:-1]
        self.epilogue = MatmulEpilogue.of_layer(matmul.spec, rest)

    def emit(self) -> None:
        matmul, total = self.matmul, self.X.shape[0]
        with T.parallel(0, matmul.groups * T.ceildiv(total, matmul.step)) as task:
            chunks = index_in_register(T.truncdiv(total + matmul.step - 1, matmul.step))
            group, chunk = divide_in_registers(task, chunks)
            self.group = index_in_register(group * matmul.panels)
            tiles = T.truncdiv(T.truncdiv(total + chunks - 1, chunks) + matmul.rows - 1, matmul.rows)
            share = index_in_register(tiles * matmul.rows)
            self.first_row = index_in_register(chunk * share)
            self.count = index_in_register(T.max(T.min(share, total - self.first_row), 0))
            self.own_panels = index_in_register(T.min(matmul.panels, len(matmul.weight) - self.group))
            self._allocate()
            with T.serial(0, matmul.blocks) as block:
                first = T.bind(block * matmul.stretch)
                stretch = _Stretch(first, T.bind(T.min(matmul.depth - first, matmul.stretch)))
                self._copy_rows(stretch)
                self._multiply_panels(stretch)

    def _allocate(self) -> None:
        """The copy of the rows, sums between stretches, and a register tile."""
        matmul = self.matmul
        height = matmul.step + FEW
        self.copy = allocate_scratch((height, matmul.stretch), self.X.dtype)
        keeps_sums = matmul.blocks > 1
        self.sums = allocate_scratch((matmul.panels, height, matmul.panel), "float32") if keeps_sums else None
        # One buffer of all would be too large for the stack, and what is not on it, LLVM keeps in memory.
        columns = range(matmul.columns)
        self.tile = [T.alloc_buffer((matmul.rows,), "float32x16", scope="global") for _ in columns]

    def _copy_rows(self, stretch: _Stretch) -> None:
        """Copy a stretch of the rows side by side, in whole small tiles: the last row may be there several times."""
        k0, extent = stretch
        with T.serial(0, T.truncdiv(self.count + FEW - 1, FEW) * FEW) as r:
            row = T.bind(self.first_row + T.min(r, self.count - 1))
            with T.serial(0, extent // LANES) as v:
                T.buffer_store(self.copy, self.X[row, ramp(k0 + v * LANES)], [r, ramp(v * LANES)])
            with T.serial(0, extent % LANES) as k:
                T.buffer_store(self.copy, self.X[row, k0 + extent - 1 - k], [r, extent - 1 - k])
            if self.matmul.depth % self.matmul.values_per_step:
                with when(k0 + extent == self.matmul.depth):
                    T.buffer_store(self.copy, T.uint16(0), [r, extent])

    def _multiply_panels(self, stretch: _Stretch) -> None:
        """All tiles of rows times a stretch of each panel; every tile fetches its share of the next panel's lines."""
        matmul, (k0, extent) = self.matmul, stretch
        full = T.bind(T.truncdiv(self.count, matmul.rows))
        few = T.bind(T.truncdiv(T.truncmod(self.count, matmul.rows) + FEW - 1, FEW))
        lines = T.ceildiv(extent, matmul.values_per_step) * matmul.columns  # of a panel's stretch
        tiles = T.max(full + few, 1)  # a last task may have no rows
        share = index_in_register(T.truncdiv(lines + tiles - 1, tiles))
        with T.serial(0, self.own_panels) as p:
            last = T.bind(p + 1 == self.own_panels)
            next_panel = T.bind(T.Select(last, self.group, self.group + p + 1))
            next_k = T.bind(T.Select(last, k0 + matmul.stretch, k0) // matmul.values_per_step)

            def fetched(nth: Expr, panel: Expr = next_panel, k0: Expr = next_k) -> Callable[[Expr], Expr]:
                return lambda k: self.W[panel, k0, (nth * share + k) * LANES]

            with T.serial(0, full) as t:
                self._emit_tile(p, T.bind(t * matmul.rows), stretch, matmul.rows, fetched(t))
            with T.serial(0, few) as t:
                self._emit_tile(p, T.bind(full * matmul.rows + t * FEW), stretch, FEW, fetched(full + t))

    def _emit_tile(self, p: Expr, row: Expr, stretch: _Stretch, height: int, fetched: Callable[[Expr], Expr]) -> None:
        """A register tile of `height` rows from `row` of the chunk on, times a stretch of the task's pth panel.

        fetched: the element that a step of the reduction prefetches.
        """
        matmul, tile, (k0, extent) = self.matmul, self.tile, stretch
        panel = T.bind(self.group + p)
        if self.sums is None:
            self._start_from_bias(panel, height)
        else:
            with T.If(k0 == 0):
                with T.Then():
                    self._start_from_bias(panel, height)
                with T.Else():
                    for r, c in self._elements(height):
                        T.buffer_store(tile[c], vector_load(self.sums, p, row + r, c * LANES), [r])
        with T.serial(0, T.ceildiv(extent, matmul.values_per_step)) as k:
            prefetch(fetched(k))
            step = k0 // matmul.values_per_step + k
            weights = [T.bind(vector_load(self.W, panel, step, c * LANES)) for c in range(matmul.columns)]
            for r in range(height):
                value = T.bind(broadcast_input(self.copy, row + r, k * matmul.values_per_step))
                for c in range(matmul.columns):
                    T.buffer_store(tile[c], multiply_add(tile[c][r], value, weights[c]), [r])
        if self.sums is None:
            self._finish(panel, row, height)
            return
        with T.If(k0 + extent == matmul.depth):
            with T.Then():
                self._finish(panel, row, height)
            with T.Else():
                for r, c in self._elements(height):
                    vector_store(self.sums, tile[c][r], p, row + r, c * LANES)

    def _elements(self, height: int) -> list[tuple[int, int]]:
        """Row and column, in vectors, of each element of a register tile."""
        return [(r, c) for r in range(height) for c in range(self.matmul.columns)]

    def _start_from_bias(self, panel: Expr, height: int) -> None:
        for c in range(self.matmul.columns):
            start = T.bind(vector_load(self.bias, panel * self.matmul.panel + c * LANES))
            for r in range(height):
                T.buffer_store(self.tile[c], start, [r])

    def _finish(self, panel: Expr, row: Expr, height: int) -> None:
        """The epilogue; a small tile may reach past the rows, the last panel past the columns."""
        first, small = index_in_register(panel * self.matmul.panel), height < self.matmul.rows
        for r, c in self._elements(height):
            column = T.bind(first + c * LANES)
            above = [row + r < self.count] if small else []
            with when(*above, *self.epilogue.inside(column, self.matmul.panel)):
                self.epilogue.store(self.tile[c][r], self.first_row + row + r, column)
