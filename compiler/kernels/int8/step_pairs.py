"""Sums and products of two tensors of 8 bits, rounded to steps again."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten_to_rows
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp, vector_type
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.quantised import StepPairParameters
from veltair.compiler.kernels.int8.epilogue import quantum, round_within, rounding_bounds

CHUNKS = (1 << 13, 1 << 11, 1 << 15)  # elements of a task
# Places in the array of numbers: of an input zero point and scale; of the output steps of a unit, bounds, zero point.
LEFT, RIGHT, OUTPUT = 0, 2, 4


class StepPairs:
    """inputs: two tensors of 8 bits in one layout, the second as large as the first or, of (N, C, H, W), one
    number a channel; output as the first. weights: left, right, output: scale and zero point.

    Parameters: `StepPairParameters`.

    >>> StepPairs.__name__
    'StepPairs'
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        total = spec.most(prod(spec.inputs[0].physical))
        return [{"chunk": chunk} for chunk in CHUNKS if chunk < total] or [{"chunk": CHUNKS[0]}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, other, y = *spec.inputs, spec.outputs[0]
        channels = _rows_of(spec)
        rows = max(int(point["chunk"]) // channels, 1)
        pixels = prod(x.shape[2:]) if other.shape != x.shape else 1  # that share a number of the second tensor
        numbers = _pack_numbers(spec)
        total = spec.most(prod(x.physical))

        def body(X: Any, Z: Any, numbers: Any, Y: Any) -> None:
            left, right, target = (flatten_to_rows(buffer, channels) for buffer in (X, Z, Y))
            count = prod(X.shape) // channels
            with T.parallel(0, T.ceildiv(count, rows)) as task:
                first = T.bind(task * rows)
                with T.serial(0, T.min(rows, count - first)) as r:
                    row = T.bind(first + r)
                    shared = T.bind(row // pixels) if pixels > 1 else row

                    def finish(column: Expr, lanes: int, row: Expr = row, shared: Expr = shared) -> None:
                        a, b = left[row, ramp(column, lanes)], right[shared, ramp(column, lanes)]
                        value = _combined(spec, numbers, T.bind(a), T.bind(b), lanes)
                        T.buffer_store(target, T.bind(value), [row, ramp(column, lanes)])

                    if channels >= LANES:
                        with T.serial(0, channels // LANES) as step:
                            finish(T.bind(step * LANES), LANES)
                    if channels % LANES:
                        with T.serial(0, channels % LANES) as rest:
                            finish(T.bind(channels - channels % LANES + rest), 1)

        function = build_prim_func([x, other, numbers, y], body)
        return Kernel(function, (numbers,), 3 * rows * channels, -(-total // (rows * channels)))


def _rows_of(spec: LayerSpec) -> int:
    """The elements of a row: the channels of a pixel, or as many elements as rows of equal length can have."""
    x, other = spec.inputs
    if other.shape != x.shape:
        return x.shape[1]
    whole = prod(abs(extent) for extent in x.physical)
    return next((size for size in (512, 256, 128, 64, 32, 16) if whole % size == 0), x.physical[-1])


def _pack_numbers(spec: LayerSpec) -> NDArray[np.float32]:
    parameters, y = spec.parameters_as(StepPairParameters), spec.outputs[0]
    found: list[float] = []
    for name in ("left", "right"):
        scale, zero = quantum(spec, name)
        found += [zero, scale]
    inverse, low, high = rounding_bounds(quantum(spec, "output"), y.dtype, [parameters.activation])
    return np.array([*found, inverse, low, high, quantum(spec, "output")[1]], np.float32)


def _combined(spec: LayerSpec, numbers: Any, a: Expr, b: Expr, lanes: int) -> Expr:
    """The steps of `lanes` results."""
    number = [broadcast(numbers[place], lanes) for place in range(8)]
    integers, floats = vector_type("int32", lanes), vector_type("float32", lanes)

    def units(steps: Expr, place: int) -> Expr:
        return (T.cast(T.cast(steps, integers), floats) - number[place]) * number[place + 1]

    left, right = units(a, LEFT), units(b, RIGHT)
    value = left + right if spec.parameters_as(StepPairParameters).operator == "add" else left * right
    inverse, low, high, zero = number[OUTPUT:]
    rounded = round_within(value, inverse, low, high, lanes)
    return T.cast(T.cast(rounded + zero, integers), vector_type(spec.outputs[0].dtype, lanes))
