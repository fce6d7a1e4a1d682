"""Convolution in fp32: the algorithms that may serve one layer, each a part of its design space."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.conv import conv2d_direct, conv2d_grouped, winograd
from veltair.compiler.kernels.conv.conv_algorithm import ConvAlgorithm


class Conv2d:
    """The design space of "conv2d".

    inputs: x (N, IC/b, H, W, b)[, residual as the output]; weights: weight (OC, IC / groups, KH, KW), bias (OC).
    Parameters: `Conv2dParameters`::

        for point in Conv2d().points(spec, features):  # features: frozenset of instruction sets
            kernel = Conv2d().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        if spec.parameters_as(Conv2dParameters).groups > 1:
            return conv2d_grouped.points(spec, features)
        direct = conv2d_direct.points(spec, features)
        transformed = winograd.points(spec, features)
        if not transformed:
            return direct
        m = int(transformed[0]["m"])
        faster = winograd.estimated_cycles(spec, m, features) < winograd.estimated_cycles(spec, 1, features)
        return [*transformed, *direct] if faster else [*direct, *transformed]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        match ConvAlgorithm(str(point["algorithm"])):
            case ConvAlgorithm.WINOGRAD:
                return winograd.build(spec, point, features)
            case ConvAlgorithm.GROUPED:
                return conv2d_grouped.build(spec, point, features)
            case ConvAlgorithm.DIRECT:
                return conv2d_direct.build(spec, point, features)
