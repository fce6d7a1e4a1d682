"""Dynamic quantisation, as the exporters of text models write it: DynamicQuantizeLinear, MatMulInteger or
ConvInteger, Cast, Mul.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.patterns.quantised.integer_weights import IntegerWeight, centred_weight


@dataclass(frozen=True, slots=True)
class DynamicProduct:
    """x @ weight as floats: (x - x_zero) @ weight * x_scale; of a convolution likewise."""

    x: str
    x_scale: str
    x_zero: str
    weight: IntegerWeight  # (depth, columns), or (columns, channels, rows, columns of a window)
    output: str
    nodes: tuple[onnx.NodeProto, ...]  # in order


def dynamic_product(node: onnx.NodeProto, view: ModelView) -> DynamicProduct | None:
    """The product that a MatMulInteger or ConvInteger with constant weights is a part of."""
    maker, weight = view.makers.get(node.input[0]), view.constants.get(node.input[1])
    if maker is None or maker.op_type != "DynamicQuantizeLinear" or weight is None or weight.ndim not in (2, 4):
        return None
    maps = node.op_type == "ConvInteger"
    axis = 0 if maps else weight.ndim - 1  # of columns
    count = weight.shape[axis]
    if len(node.input) < 3 or node.input[0] != maker.output[0] or node.input[2] != maker.output[2]:
        return None
    zero = view.constants.get(node.input[3]) if len(node.input) > 3 and node.input[3] else np.zeros(1, weight.dtype)
    if zero is None or zero.size not in (1, count) or zero.ndim > 1:
        return None
    cast = view.only_user(node.output[0])
    product = view.only_user(cast.output[0]) if cast is not None and cast.op_type == "Cast" else None
    if cast is None or product is None or product.op_type != "Mul":
        return None
    factor = next(name for name in (*product.input, "") if name != cast.output[0])
    scale = _scale(factor, maker.output[1], view)
    if scale is None or scale.size not in (1, count) or scale.ndim > len(view.shape_of(product.output[0])):
        return None
    if scale.size > 1 and scale.shape[-3 if maps else -1 :] != ((count, 1, 1) if maps else (count,)):
        return None
    found = centred_weight(weight, zero, scale.reshape(-1).astype(np.float32), axis)
    names = maker.output[1], maker.output[2]
    scaling = [view.makers[factor]] if factor != maker.output[1] and view.only_user(factor) is product else []
    nodes = (node, cast, *scaling, product)
    return DynamicProduct(maker.output[0], *names, found, product.output[0], nodes)


def _scale(factor: str, x_scale: str, view: ModelView) -> NDArray[Any] | None:
    """The constant that a factor has beside the input's scale."""
    if factor == x_scale:
        return np.ones(1, np.float32)
    maker = view.makers.get(factor)
    if maker is None or maker.op_type != "Mul" or x_scale not in maker.input:
        return None
    return next((view.constants[name] for name in maker.input if name in view.constants), None)
