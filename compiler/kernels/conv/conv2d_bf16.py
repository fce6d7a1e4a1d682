"""Convolution in bfloat16: on tiles where the CPU has AMX, else in dot products of AVX-512-bf16."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.conv import conv2d_direct
from veltair.compiler.kernels.conv.amx_tile_choice import choose_amx_tiles
from veltair.compiler.kernels.conv.conv2d_amx import conv2d_amx


class Conv2dBf16:
    """The design space of "conv2d_bf16".

    inputs: x (N, IC/32, H, W, 32), or (N, 1, H, W, IC) of an image[, residual as the output]; weights: weight
    (OC, IC / groups, KH, KW), bias (OC). Parameters: `Conv2dParameters`::

        for point in Conv2dBf16().points(spec, features):  # features: frozenset of instruction sets
            kernel = Conv2dBf16().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return choose_amx_tiles(spec) if "amx_bf16" in features else conv2d_direct.points(spec, features)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        on_tiles = "algorithm" not in point
        return conv2d_amx(spec, point) if on_tiles else conv2d_direct.build(spec, point, features)
