"""Convolution in bfloat16: in tiles where the CPU has AMX, else in dot products of AVX-512-bf16."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.conv import conv2d_direct
from veltair.compiler.kernels.conv.amx_tile_choice import points
from veltair.compiler.kernels.conv.conv2d_amx import conv2d_amx


class Conv2dBf16:
    """inputs: x (N, IC/b, H, W, b)[, residual as the output]; weights: weight (OC, IC / groups, KH, KW), bias (OC).

    Attributes `groups`, where there are several, and `pooled`: rows and columns before a pool over 2 x 2.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return points(spec) if "amx_bf16" in features else conv2d_direct.points(spec, features)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        return conv2d_direct.build(spec, point, features) if "algorithm" in point else conv2d_amx(spec, point)
