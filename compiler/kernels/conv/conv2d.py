"""Convolution in fp32: the algorithms that may serve one layer, each a part of its design space."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.conv import conv2d_direct, conv2d_grouped, winograd


class Conv2d:
    """inputs: x (N, IC/b, H, W, b)[, residual as the output]; weights: weight (OC, IC / groups, KH, KW), bias (OC).

    Attributes `groups`, where there are several, and `shuffled`: output channels i of all groups lie side by side.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        if spec.parameters_as(Conv2dParameters).groups > 1:
            return conv2d_grouped.points(spec, features)
        direct = conv2d_direct.points(spec, features)
        fewer_products = winograd.points(spec, features)
        if not fewer_products:
            return direct
        transformed, plain = (winograd.cycles(spec, m, features) for m in (int(fewer_products[0]["m"]), 1))
        return [*fewer_products, *direct] if transformed < plain else [*direct, *fewer_products]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        if point["algorithm"] == "winograd":
            return winograd.build(spec, point, features)
        if point["algorithm"] == "grouped":
            return conv2d_grouped.build(spec, point, features)
        return conv2d_direct.build(spec, point, features)
