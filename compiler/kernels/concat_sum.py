"""The sum of tensors that ONNX puts side by side first: each is read where it lies, fp32 or bfloat16.

Every width is taken: what fills no vector of 16 is a shorter vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels import vectormath as vm
from veltair.compiler.kernels.emit import LANES, Expr, lanes, primitive, splat, upper_half

Columns = tuple[Expr, int]  # the first, and how many: at most 16


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

        function = primitive([*spec.inputs, *spec.outputs], body)
        taken = sum(tensor.shape[1] for tensor in spec.inputs) + width
        return Kernel(function, (), 4 * each * taken, -(-spec.most(spec.outputs[0].shape[0]) // each) * SUMS)


SUMS = 4  # accumulators: an addition takes four cycles


def columns(width: int) -> Iterator[Columns]:
    """All columns of a row, in a loop over vectors of 16 and a shorter one."""
    if width >= LANES:
        with T.serial(0, width // LANES) as vector:
            yield vector * LANES, LANES
    if width % LANES:
        yield T.int32(width - width % LANES), width % LANES


def take(buffer: Any, row: Expr, column: Expr, count: int) -> Expr:
    """`count` floats from a column on; bfloat16 bits are widened."""
    value = buffer[row, column if count == 1 else lanes(column, count)]
    if buffer.dtype != "uint16":
        return value
    suffix = f"x{count}" if count > 1 else ""
    wide = T.shift_left(T.cast(value, f"uint32{suffix}"), _number(16, count))
    return T.reinterpret(f"float32{suffix}", wide)


def put(buffer: Any, value: Expr, row: Expr, column: Expr, count: int) -> None:
    """Store what `take` gives; rounded to nearest even where the buffer holds bfloat16 bits."""
    if buffer.dtype == "uint16":
        suffix = f"x{count}" if count > 1 else ""
        bits = T.bind(T.reinterpret(f"uint32{suffix}", value))
        value = T.cast(upper_half(bits, lambda number: _number(number, count)), f"uint16{suffix}")
    T.buffer_store(buffer, value, [row, column if count == 1 else lanes(column, count)])


def _number(value: int, count: int) -> Expr:
    return T.uint32(value) if count == 1 else T.broadcast(T.uint32(value), count)


def _across(pieces: list[Any], widths: list[int], width: int, Y: Any, row: Expr, sums: Any, scale: float) -> None:
    for first, count in columns(width):
        where = 0 if count == 1 else lanes(0, count)
        zero = T.float32(0) if count == 1 else T.broadcast(T.float32(0), count)
        for at in range(SUMS):
            T.buffer_store(sums, zero, [at, where])
        for turn, (piece, total) in enumerate(zip(pieces, widths, strict=True)):
            at = turn % SUMS
            with T.serial(0, total // width) as c:
                value = take(piece, row, c * width + first, count)
                T.buffer_store(sums, sums[at, where] + value, [at, where])
        parts = [sums[at, where] for at in range(SUMS)]
        put(Y, ((parts[0] + parts[1]) + (parts[2] + parts[3])) * scaled(scale, count), row, first, count)


def _along(pieces: list[Any], widths: list[int], width: int, Y: Any, row: Expr, sums: Any, scale: float) -> None:
    for at in range(SUMS):
        T.buffer_store(sums, splat(0.0), [at, lanes(0)])

    def add(at: int, value: Expr, count: int) -> None:
        where = 0 if count == 1 else lanes(0, count)
        T.buffer_store(sums, sums[at, where] + value, [at, where])

    for turn, (piece, total) in enumerate(zip(pieces, widths, strict=True)):
        step = SUMS * LANES
        if total >= step:
            with T.serial(0, total // step) as vector:
                for at in range(SUMS):
                    add(at, take(piece, row, vector * step + at * LANES, LANES), LANES)
        for first in range(total - total % step, total, LANES):
            count = min(LANES, total - first)
            add((turn + first // LANES) % SUMS, take(piece, row, T.int32(first), count), count)
    value = T.bind((sums[0, lanes(0)] + sums[1, lanes(0)]) + (sums[2, lanes(0)] + sums[3, lanes(0)]))
    if width == 1:
        put(Y, vm.sum_lanes(value) * T.float32(scale), row, T.int32(0), 1)
        return
    half = LANES // 2
    while half >= width:
        low, high = (T.Shuffle([value], [T.int32(first + i) for i in range(half)]) for first in (0, half))
        value, half = T.bind(low + high), half // 2
    put(Y, value * scaled(scale, width), row, T.int32(0), width)


def scaled(scale: float, count: int) -> Expr:
    """A factor for `count` lanes."""
    return T.float32(scale) if count == 1 else T.broadcast(T.float32(scale), count)
