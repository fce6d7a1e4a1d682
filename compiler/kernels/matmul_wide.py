"""Matrix product on bfloat16 in vectors, for CPUs without tiles: both products of a pair are widened to fp32.

(`vdpbf16ps` would halve the instructions, but TVM 0.27 makes integers of every bfloat16 operand before LLVM sees it.)
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels.emit import (
    LANES,
    Expr,
    load,
    pad_to,
    primitive,
    splat,
    when,
    whole,
)
from veltair.compiler.kernels.matmul_amx import DEPTH, PANEL, pack
from veltair.compiler.kernels.matmul_operands import matmul_rows, sides_of, store_outputs

HALVES = PANEL // LANES


def matmul_wide(spec: LayerSpec, point: Point) -> Kernel:
    """A register tile is `rows` x 32; a task takes `panels` panels of 32 columns for a share of the rows."""
    x, y = spec.inputs[0], spec.outputs[0]
    depth, width = x.shape[1], y.shape[1]
    panels, chunks, tall = int(point["panels"]), int(point["chunks"]), int(point["rows"])
    weight = pack(spec.weights["weight"])  # (panels, steps, 2, 16 pairs, 16 columns, 2)
    bias = pad_to(spec.weights["bias"], 0, PANEL)
    activation = str(spec.attributes["activation"])
    groups = weight.shape[0] // panels

    def body(X: Any, *rest: Any) -> None:
        sides = sides_of(spec, rest)
        W, bias_, Y = rest[-3:]
        total = X.shape[0]

        def tile(acc: Any, panel: Expr, row: Expr, count: int) -> None:
            for at in range(count * HALVES):
                T.buffer_store(acc, splat(0.0), [at])

            def products(k: Expr, both: bool) -> None:
                """Products 2k and 2k + 1; of the last of an odd depth the second is none."""
                where = [panel, k // (DEPTH // 2)]
                taps = [
                    T.bind(T.reinterpret("uint32x16", W[(*where, half, k % (DEPTH // 2), T.ramp(0, 1, 2 * LANES))]))
                    for half in range(HALVES)
                ]
                for j in range(2 if both else 1):
                    sides = [T.bind(_widened(tap, j)) for tap in taps]
                    for r in range(count):
                        value = T.shift_left(T.cast(X[row + r, k * 2 + j], "uint32"), T.uint32(16))
                        value = T.bind(T.broadcast(T.reinterpret("float32", value), LANES))
                        for half in range(HALVES):
                            at = r * HALVES + half
                            T.buffer_store(acc, acc[at] + value * sides[half], [at])

            with T.serial(0, depth // 2) as k:
                products(k, True)
            if depth % 2:
                products(T.int32(depth // 2), False)
            for r in range(count):
                for half in range(HALVES):
                    column = T.bind(panel * PANEL + half * LANES)
                    with when(column < width):
                        value = acc[r * HALVES + half] + load(bias_, column)
                        store_outputs(Y, value, sides, activation, row + r, column, width)

        with T.parallel(0, groups * chunks) as task:
            acc = T.alloc_buffer((tall * HALVES,), "float32x16", scope="local")
            group, chunk = T.bind(task // chunks), T.bind(task % chunks)
            each = T.bind(T.ceildiv(T.ceildiv(total, tall), chunks) * tall)
            first = T.bind(chunk * each)
            mine = T.bind(T.max(T.min(each, total - first), 0))
            with T.serial(0, panels) as p:
                panel = T.bind(group * panels + p)
                with T.serial(0, mine // tall) as t:
                    tile(acc, panel, first + t * tall, tall)
                if tall > 1:
                    with T.serial(0, mine % tall) as r:
                        tile(acc, panel, first + mine // tall * tall + r, 1)

    flat = weight.reshape(*weight.shape[:4], -1)  # the last two as one vector
    function = primitive([*spec.inputs, flat, bias, *spec.outputs], body)
    taken = -(-matmul_rows(spec) // chunks)
    block_size = panels * weight[0].nbytes + taken * (depth * 2 + panels * PANEL * 4)
    return Kernel(function, (flat, bias), block_size, groups * chunks * tall * HALVES)


def _widened(pairs: Expr, which: int) -> Expr:
    """The first or the second of each pair of bfloat16 values, as floats."""
    if which:
        return T.reinterpret("float32x16", T.bitwise_and(pairs, whole(0xFFFF0000)))
    return T.reinterpret("float32x16", T.shift_left(pairs, whole(16)))
