"""Tensors of 8 bits side by side in their channels, which are last."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten_to_rows
from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.feature_maps.blocked_planes import row_points

VECTORS = (64, 32, 16, 1)  # channels that one instruction copies


class JoinedChannels:
    """inputs: (N, C, H, W) of 8 bits, each in one block of all its channels; output the same with all channels.

    >>> JoinedChannels.__name__
    'JoinedChannels'
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y = spec.outputs[0]
        _, channels, height, width = y.shape
        pixels = int(point["rows"]) * width

        def body(*buffers: Any) -> None:
            *pieces, Y = buffers
            total = T.bind(Y.shape[0] * (height * width))
            target = flatten_to_rows(Y, channels)
            with T.parallel(0, T.ceildiv(total, pixels)) as task:
                first = T.bind(task * pixels)
                start = 0
                for piece, tensor in zip(pieces, spec.inputs, strict=True):
                    count = tensor.shape[1]
                    source = flatten_to_rows(piece, count)
                    with T.serial(0, T.min(pixels, total - first)) as pixel:
                        _copy(source, target, T.bind(first + pixel), start, count)
                    start += count

        tasks = -(-spec.most(y.shape[0]) * height * width // pixels)
        return Kernel(build_prim_func([*spec.inputs, y], body), (), 2 * pixels * channels, tasks)


def _copy(source: Any, target: Any, pixel: Expr, start: int, count: int) -> None:
    """All channels of a pixel, to the place behind `start` others."""
    done = 0
    for size in VECTORS:
        times = (count - done) // size
        if times > 1:
            with T.serial(0, times) as step:
                at = T.bind(done + step * size)
                T.buffer_store(target, source[pixel, ramp(at, size)], [pixel, ramp(start + at, size)])
        elif times:
            T.buffer_store(target, source[pixel, ramp(done, size)], [pixel, ramp(start + done, size)])
        done += times * size
