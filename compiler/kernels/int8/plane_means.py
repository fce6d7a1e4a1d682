"""The mean of each channel's plane, of steps, rounded to steps again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import masked_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten_to_rows
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.int8.epilogue import quantum, round_within, rounding_bounds

VECTORS = (4, 1, 2)  # of channels, that a task takes
CHAINS = 4  # sums of one vector side by side: an addition waits for the one before it


class PlaneMeans:
    """input x (N, C, H, W) of 8 bits in one block; output (N, C, 1, 1) likewise. weights: input, output: scale and zero
    point.

    >>> PlaneMeans.__name__
    'PlaneMeans'
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        most = -(-spec.inputs[0].shape[1] // LANES)
        return [{"vectors": count} for count in VECTORS if count <= most]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        _, channels, height, width = x.shape
        taken, pixels = int(point["vectors"]), height * width
        groups, numbers = -(-channels // (taken * LANES)), _pack_numbers(spec)

        def body(X: Any, numbers: Any, Y: Any) -> None:
            source, target = flatten_to_rows(X, channels), flatten_to_rows(Y, channels)
            with T.parallel(0, X.shape[0] * groups) as task:
                image, group = T.bind(task // groups), T.bind(task % groups)
                first = T.bind(group * (taken * LANES))
                with T.serial(0, T.min(taken, T.ceildiv(channels - first, LANES))) as vector:
                    # The last vector reaches back: behind the last channel lie those of the next pixel.
                    begin = T.bind(T.max(T.min(first + vector * LANES, channels - LANES), 0))
                    sums = _sums(source, T.bind(image * pixels), pixels, begin, min(channels, LANES))
                    value = _rounded(numbers, sums)
                    steps = T.bind(T.cast(T.cast(value, f"int32x{LANES}"), f"{y.dtype}x{LANES}"))
                    masked_store(target, steps, image, begin, width=channels)

        tasks = spec.most(x.shape[0]) * groups
        return Kernel(build_prim_func([x, numbers, y], body), (numbers,), pixels * taken * LANES, tasks)


def _sums(source: Any, first: Expr, pixels: int, begin: Expr, count: int) -> Expr:
    """Of 16 channels, or of the `count` ones that there are, over the pixels from `first` on."""
    sums = T.alloc_buffer((CHAINS,), f"int32x{LANES}", scope="local")
    for chain in range(CHAINS):
        T.buffer_store(sums, T.broadcast(T.int32(0), LANES), [chain])

    def add(chain: int, pixel: Expr) -> None:
        if count == LANES:
            steps = source[pixel, ramp(begin)]
        else:
            lanes = [source[pixel, lane] for lane in range(count)]
            steps = T.Shuffle(lanes + [lanes[0]] * (LANES - count), list(range(LANES)))
        T.buffer_store(sums, sums[chain] + T.cast(steps, f"int32x{LANES}"), [chain])

    if pixels >= CHAINS:
        with T.serial(0, pixels // CHAINS) as step:
            for chain in range(CHAINS):
                add(chain, T.bind(first + step * CHAINS + chain))
    for rest in range(pixels % CHAINS):
        add(rest, T.bind(first + pixels - 1 - rest))
    return T.bind((sums[0] + sums[1]) + (sums[2] + sums[3]))


def _pack_numbers(spec: LayerSpec) -> NDArray[np.float32]:
    """What is to be taken from a sum, the factor to units; steps of a unit, bounds and zero point of the output."""
    (scale, zero), (_, _, height, width) = quantum(spec, "input"), spec.inputs[0].shape
    inverse, low, high = rounding_bounds(quantum(spec, "output"), spec.outputs[0].dtype, [])
    pixels = height * width
    return np.array([pixels * zero, scale / pixels, inverse, low, high, quantum(spec, "output")[1]], np.float32)


def _rounded(numbers: Any, sums: Expr) -> Expr:
    offset, factor, inverse, low, high, zero = (broadcast(numbers[place]) for place in range(6))
    value = (T.cast(sums, f"float32x{LANES}") - offset) * factor
    return T.bind(round_within(value, inverse, low, high) + zero)
