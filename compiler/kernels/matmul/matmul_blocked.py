"""Matrix product with constant weights and many rows in vectors, blocked for caches as in BLIS (Van Zee et al. 2015).

A task takes `panels` panels of weights for a chunk of rows. Of a stretch of the depth it copies its rows side by side,
so that no two of them meet in one set of a cache, and lets all tiles of rows pass the stretch of one panel, which
stays in L1, while they fetch the next one's; sums are kept between stretches. Rows that fill no tile are done four by
four.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen.control_flow import when
from veltair.compiler.kernels.codegen.memory import allocate_scratch, prefetch, vector_load, vector_store
from veltair.compiler.kernels.codegen.multiply_add import VALUES_PER_STEP, broadcast_input, multiply_add, reduction_body
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.kernels.codegen.weight_packing import pad_axis
from veltair.compiler.kernels.matmul.matmul_operands import matmul_rows, packed_panels, sides_of, store_outputs

FEW = 4  # rows of a small tile


def blocked_points(spec: LayerSpec, features: frozenset[str]) -> list[Point]:
    """A register tile of `columns` vectors x `rows`; at most `tall` of them a chunk, `panels` a task; `stretch`.

    Tiles of 4 x 6 and 3 x 8 vectors were never more than 2 % faster than 2 x 12.
    """
    rows_in = matmul_rows(spec)
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


def matmul_blocked(spec: LayerSpec, point: Point) -> Kernel:
    x, y = spec.inputs[0], spec.outputs[0]
    depth, width = x.shape[1], y.shape[1]
    columns, rows, tall, panels = (int(point[name]) for name in ("columns", "rows", "tall", "panels"))
    panel, step = columns * LANES, rows * tall
    packed = packed_panels(spec, panel)
    bias = pad_axis(spec.weights["bias"], 0, panel)
    count = len(packed)
    groups = -(-count // panels)
    stretch = -(-depth // -(-depth // int(point["stretch"])) // LANES) * LANES  # all of them about equal
    blocks = -(-depth // stretch)
    activation = str(spec.attributes["activation"])
    each_step = VALUES_PER_STEP[x.dtype]

    def body(X: Any, *rest: Any) -> None:
        sides = sides_of(spec, rest)
        W, bias_, Y = rest[-3:]
        total = X.shape[0]
        chunks = T.ceildiv(total, step)
        with T.parallel(0, groups * chunks) as task:
            group, chunk = T.bind(task // chunks * panels), T.bind(task % chunks)
            each = T.bind(T.ceildiv(T.ceildiv(total, chunks), rows) * rows)
            first = T.bind(chunk * each)
            mine = T.bind(T.max(T.min(each, total - first), 0))
            own = T.bind(T.min(panels, count - group))
            near = allocate_scratch((step + FEW, stretch), x.dtype)
            sums = allocate_scratch((panels, step + FEW, panel), "float32") if blocks > 1 else None
            # One buffer of all would be too large for the stack, and what is not on it, LLVM keeps in memory.
            acc = [T.alloc_buffer((rows,), "float32x16", scope="global") for _ in range(columns)]

            def tile(p: Expr, row: Expr, k0: Expr, extent: Expr, height: int, ahead: Callable[[Expr], Expr]) -> None:
                place = T.bind(group + p)
                spots = [(r, c) for r in range(height) for c in range(columns)]

                def begin() -> None:
                    for c in range(columns):
                        start = T.bind(vector_load(bias_, place * panel + c * LANES))
                        for r in range(height):
                            T.buffer_store(acc[c], start, [r])

                def end() -> None:
                    for r, c in spots:
                        column = T.bind(place * panel + c * LANES)
                        inside = column < width if height == rows else T.And(column < width, row + r < mine)
                        with when(inside):
                            store_outputs(Y, acc[c][r], sides, activation, first + row + r, column, width)

                if sums is None:
                    begin()
                else:
                    with T.If(k0 == 0):
                        with T.Then():
                            begin()
                        with T.Else():
                            for r, c in spots:
                                T.buffer_store(acc[c], vector_load(sums, p, row + r, c * LANES), [r])
                with T.serial(0, T.ceildiv(extent, each_step)) as k:
                    prefetch(ahead(k))
                    taps = [T.bind(vector_load(W, place, k0 // each_step + k, c * LANES)) for c in range(columns)]
                    for r in range(height):
                        value = T.bind(broadcast_input(near, row + r, k * each_step))
                        for c in range(columns):
                            T.buffer_store(acc[c], multiply_add(acc[c][r], value, taps[c]), [r])
                if sums is None:
                    end()
                    return
                with T.If(k0 + extent == depth):
                    with T.Then():
                        end()
                    with T.Else():
                        for r, c in spots:
                            vector_store(sums, acc[c][r], p, row + r, c * LANES)

            with T.serial(0, blocks) as block:
                k0 = T.bind(block * stretch)
                extent = T.bind(T.min(depth - k0, stretch))
                with T.serial(0, T.ceildiv(mine, FEW) * FEW) as r:
                    source = T.bind(first + T.min(r, mine - 1))
                    with T.serial(0, extent // LANES) as v:
                        T.buffer_store(near, X[source, ramp(k0 + v * LANES)], [r, ramp(v * LANES)])
                    with T.serial(0, extent % LANES) as k:
                        T.buffer_store(near, X[source, k0 + extent - 1 - k], [r, extent - 1 - k])
                    if depth % each_step:
                        with when(k0 + extent == depth):
                            T.buffer_store(near, T.uint16(0), [r, extent])
                full, few = T.bind(mine // rows), T.bind(T.ceildiv(mine % rows, FEW))
                held = T.ceildiv(extent, each_step) * columns  # lines of a panel
                share = T.bind(T.ceildiv(held, full + few))  # of the next one's, of each tile
                with T.serial(0, own) as p:
                    last = T.bind(p + 1 == own)
                    next_panel = T.bind(T.Select(last, group, group + p + 1))
                    next_k = T.bind(T.Select(last, k0 + stretch, k0) // each_step)

                    def fetched(nth: Expr, panel: Expr = next_panel, depth: Expr = next_k) -> Callable[[Expr], Expr]:
                        return lambda k: W[panel, depth, (nth * share + k) * LANES]

                    with T.serial(0, full) as t:
                        tile(p, T.bind(t * rows), k0, extent, rows, fetched(t))
                    with T.serial(0, few) as t:
                        tile(p, T.bind(full * rows + t * FEW), k0, extent, FEW, fetched(full + t))

    function = build_prim_func([*spec.inputs, packed, bias, y], reduction_body(x.dtype, body))
    taken, item = min(step, matmul_rows(spec)), 4 // each_step
    block_size = (panel + taken) * stretch * item + taken * (panels * panel if blocks > 1 else 0) * 4
    parallelism = groups * -(-matmul_rows(spec) // step) * rows * columns
    return Kernel(function, (packed, bias), block_size, parallelism)
