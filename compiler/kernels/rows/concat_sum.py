"""The sum of tensors that ONNX puts side by side first: each is read where it lies, fp32 or bfloat16.

Every width is taken: what fills no vector of 16 is a shorter vector.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen import vector_math as vm
from veltair.compiler.kernels.codegen.control_flow import loop_over_columns
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast


class ConcatSum:
    """inputs (rows, c * D), c being whatever the input's width says; output (rows, D): the sum of all, times `scale`.

    What concatenation and a sum over the same axis give (AtRec III-B2). Where D divides 16, vectors run along a row,
    whatever lies in it, and are folded at its end; else they run along D.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{"rows": rows} for rows in (16, 4, 64) if rows == 4 or rows <= spec.most(spec.outputs[0].shape[0])]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        each, width = int(point["rows"]), spec.outputs[0].shape[1]
        along = width < LANES and LANES % width == 0

        def body(*buffers: Any) -> None:
            *pieces, Y = buffers
            rows = Y.shape[0]
            with T.parallel(0, T.ceildiv(rows, each)) as task:
                sums = T.alloc_buffer((SUMS, LANES), "float32", scope="local")
                with T.serial(0, T.min(each, rows - task * each)) as r:
                    row = T.bind(task * each + r)
                    widths = [tensor.shape[1] for tensor in spec.inputs]
                    add = _along if along else _across
                    add(pieces, widths, width, Y, row, sums, float(spec.attributes["scale"]))

        function = build_prim_func([*spec.inputs, *spec.outputs], body)
        taken = sum(tensor.shape[1] for tensor in spec.inputs) + width
        return Kernel(function, (), 4 * each * taken, -(-spec.most(spec.outputs[0].shape[0]) // each) * SUMS)


SUMS = 4  # accumulators: an addition takes four cycles


def _across(pieces: list[Any], widths: list[int], width: int, Y: Any, row: Expr, sums: Any, scale: float) -> None:
    for first, count in loop_over_columns(width):
        for at in range(SUMS):
            vector_store(sums, broadcast(0.0, count), at, 0, count=count)
        for turn, (piece, wide) in enumerate(zip(pieces, widths, strict=True)):
            at = turn % SUMS
            with T.serial(0, wide // width) as c:
                value = vector_load(piece, row, c * width + first, count=count)
                vector_store(sums, vector_load(sums, at, 0, count=count) + value, at, 0, count=count)
        parts = [vector_load(sums, at, 0, count=count) for at in range(SUMS)]
        total = (parts[0] + parts[1]) + (parts[2] + parts[3])
        vector_store(Y, total * broadcast(scale, count), row, first, count=count)


def _along(pieces: list[Any], widths: list[int], width: int, Y: Any, row: Expr, sums: Any, scale: float) -> None:
    for at in range(SUMS):
        vector_store(sums, broadcast(0.0), at, 0)

    def add(at: int, piece: Any, first: Expr, count: int) -> None:
        value = vector_load(piece, row, first, count=count)
        vector_store(sums, vector_load(sums, at, 0, count=count) + value, at, 0, count=count)

    for turn, (piece, total) in enumerate(zip(pieces, widths, strict=True)):
        step = SUMS * LANES
        if total >= step:
            with T.serial(0, total // step) as vector:
                for at in range(SUMS):
                    add(at, piece, vector * step + at * LANES, LANES)
        for first in range(total - total % step, total, LANES):
            count = min(LANES, total - first)
            add((turn + first // LANES) % SUMS, piece, T.int32(first), count)
    value = T.bind(
        (vector_load(sums, 0, 0) + vector_load(sums, 1, 0)) + (vector_load(sums, 2, 0) + vector_load(sums, 3, 0))
    )
    if width == 1:
        vector_store(Y, vm.sum_lanes(value) * T.float32(scale), row, T.int32(0), count=1)
        return
    half = LANES // 2
    while half >= width:
        low, high = (T.Shuffle([value], [T.int32(first + i) for i in range(half)]) for first in (0, half))
        value, half = T.bind(low + high), half // 2
    vector_store(Y, value * broadcast(scale, width), row, T.int32(0), count=width)
