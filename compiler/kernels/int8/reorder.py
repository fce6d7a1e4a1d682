"""Where 8-bit integers begin and end: floats to steps, steps to floats, and steps with channels last or second."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.kernels.int8.epilogue import OUTPUT, PADDING, pack_numbers, round_within

CHUNK = 4096  # elements of a task


class QuantisedReorder:
    """input and output: one tensor, (N, C, H, W) of 8 bits or, of "reorder", float32, in one block of all
    channels, any other row-major.

    weights: output (of "quantise") or input (of "dequantise"), scale and zero point.

    >>> QuantisedReorder().points(LayerSpec("q", "quantise", (), (), {}, flops=0), frozenset({"avx2"}))
    [{}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        numbers = pack_numbers(spec)

        def body(X: Any, numbers: Any, Y: Any) -> None:
            def changed(value: Expr, count: int) -> Expr:
                return _changed(value, numbers, (x.dtype, y.dtype), count)

            if bool(x.block) == bool(y.block):
                _flat(X, Y, changed)
            else:
                _moved(x, y, X, Y, changed)

        return Kernel(build_prim_func([x, numbers, y], body), (numbers,), CHUNK * 5, 1)


def _changed(value: Expr, numbers: Any, dtypes: tuple[str, str], count: int) -> Expr:
    source, target = dtypes
    wide = f"x{count}" if count > 1 else ""
    if source == target:
        return value
    if target == "float32":
        steps = T.cast(T.cast(value, f"int32{wide}"), f"float32{wide}")
        return (steps - broadcast(numbers[PADDING], count)) * broadcast(numbers[PADDING + 1], count)
    if source == "float32":
        inverse, low, high = (broadcast(numbers[OUTPUT + i], count) for i in range(3))
        rounded = round_within(value, inverse, low, high, count)
        return T.cast(T.cast(rounded + broadcast(numbers[OUTPUT + 3], count), f"int32{wide}"), f"{target}{wide}")
    return value


def _flat(X: Any, Y: Any, changed: Any) -> None:
    """Element by element, in the order of memory."""
    total, source, target = prod(X.shape), flatten(X), flatten(Y)
    with T.parallel(0, T.ceildiv(total, CHUNK)) as task:
        count = T.bind(T.min(CHUNK, total - task * CHUNK))
        with T.serial(0, count // LANES) as step:
            at = T.bind(task * CHUNK + step * LANES)
            T.buffer_store(target, changed(T.bind(vector_load(source, at)), LANES), [T.ramp(at, 1, LANES)])
        with T.serial(0, count % LANES) as rest:
            at = T.bind(task * CHUNK + count // LANES * LANES + rest)
            T.buffer_store(target, changed(T.bind(source[at]), 1), [at])


def _moved(x: Activation, y: Activation, X: Any, Y: Any, changed: Any) -> None:
    """Channels from second to last place, or back: a row of the image is a task."""
    _, channels, height, width = x.shape
    images = X.shape[0]
    source, target = flatten(X), flatten(Y)

    def place(image: Expr, c: Expr, row: Expr, column: Expr, count: int, *, last: bool) -> Expr:
        plane = ((image * height + row) * width + column) * channels + c
        first = plane if last else ((image * channels + c) * height + row) * width + column
        return T.ramp(first, channels if last else 1, count) if count > 1 else first

    with T.parallel(0, images * height) as task:
        image, row = T.bind(task // height), T.bind(task % height)

        def move(c: Expr, column: Expr, count: int) -> None:
            taken = T.bind(source[place(image, c, row, column, count, last=bool(x.block))])
            value = T.bind(changed(taken, count))
            T.buffer_store(target, value, [place(image, c, row, column, count, last=bool(y.block))])

        if width >= LANES:
            with T.serial(0, width // LANES) as step, T.serial(0, channels) as c:
                move(c, T.bind(step * LANES), LANES)
        if width % LANES:
            with T.serial(0, width % LANES) as rest, T.serial(0, channels) as c:
                move(c, T.bind(width - width % LANES + rest), 1)
