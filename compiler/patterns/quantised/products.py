"""Layers of the products of 8-bit integers that `product_match` finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.quantised import Addend, QuantisedProductParameters, ReorderParameters
from veltair.compiler.onnx.node_attributes import product_of
from veltair.compiler.patterns.quantised.boundaries import channels_last
from veltair.compiler.patterns.quantised.product_facts import has_whole_bias, saturates
from veltair.compiler.patterns.quantised.product_match import ProductMatch


def quantised_product(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """The layer of a match that ends at this node."""
    found = view.matches.at(node, ProductMatch)
    if found is None:
        return False
    weights: dict[str, NDArray[Any]] = {"weight": found.weight, "scale": found.scale, "bias": found.bias}
    if found.weight_zero is not None:
        weights["weight_zero"] = found.weight_zero
    quanta = {"input": found.quantum, "between": found.between, "output": found.rounded}
    weights |= {name: quantum.array for name, quantum in quanta.items() if quantum is not None}
    addend = Addend.NONE
    if found.added is not None:
        addend, weights["added"] = Addend.BIAS, found.added
    if found.residual is not None:
        addend, weights["residual"] = Addend.RESIDUAL, found.residual.quantum.array
    parameters = QuantisedProductParameters(
        found.first,
        found.window,
        addend,
        found.between.dtype if found.between else "",
        found.last,
        dynamic=found.dynamic is not None,
        groups=found.groups,
        wide=found.weight_zero is not None,
        whole_bias=has_whole_bias(found),
        saturates=saturates(found),
    )
    shape, dtype = view.shape_of(found.output), found.rounded.dtype if found.rounded else "float32"
    sides = [found.x] if found.residual is None else [found.x, found.residual.name]
    if found.window is not None:
        inputs = [channels_last(name, view, builder) for name in sides]
        name = f"{found.output}/channels_last" if dtype == "float32" else found.output
        y = Activation(name, dtype, shape, shape[1])
    else:
        depth, columns = found.weight.shape
        rows = product_of(shape[:-1])
        y = Activation(found.output if len(shape) == 2 else f"{found.output}/rows", dtype, (rows, columns))
        widths = [depth, columns]
        inputs = [
            builder.reshape(builder.to_row_major(name), (rows, width))
            for name, width in zip(sides, widths, strict=False)
        ]
    if found.dynamic is not None:
        inputs[1:1] = [builder.reshape(builder.to_row_major(name), (1,)) for name in found.dynamic]
    flops = 2 * int(np.prod(np.abs(y.shape))) * len(found.weight)
    op = "matmul_int8" if found.window is None else "depthwise_int8" if found.depthwise else "conv2d_int8"
    builder.emit(found.name, op, inputs, [y], parameters, weights, flops)
    if found.window is not None and dtype == "float32":
        plain = Activation(found.output, dtype, shape)
        builder.emit(f"{found.name}/plain", "reorder", [y], [plain], ReorderParameters())
    elif y.name != found.output:
        builder.alias(Activation(found.output, dtype, shape), y.name)
    return True
