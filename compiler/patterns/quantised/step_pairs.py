"""Sums and products of two tensors of 8 bits, where they are rounded again; and concatenations of steps."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from veltair.compiler.graph.graph_builder import EIGHT_BITS, GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.quantised import ReorderParameters, StepPairParameters
from veltair.compiler.kernels.int8.epilogue import activation_bounds
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.patterns.activations import activation_behind
from veltair.compiler.patterns.quantised.boundaries import channels_last
from veltair.compiler.patterns.quantised.quantum import (
    QuantisedTensor,
    Quantum,
    dequantised,
    meets_integers,
    quantised_behind,
)

OPERATORS = {"Add": "add", "Mul": "mul"}


@dataclass(frozen=True, slots=True)
class PairMatch:
    """activation(left operator right), rounded. `right` is as large as `left`, or one number a channel of it."""

    left: QuantisedTensor
    right: QuantisedTensor
    parameters: StepPairParameters
    output: str
    quantum: Quantum


def find_step_pairs(view: ModelView, taken: Matches) -> Matches:
    matches = Matches()
    for node in view.nodes:
        if node.op_type in OPERATORS and taken.is_free(node) and view.matches.is_free(node):
            _match(node, view, taken, matches)
    return matches


def _match(node: onnx.NodeProto, view: ModelView, taken: Matches, matches: Matches) -> None:
    left, right = (dequantised(name, view) for name in node.input)
    if left is None or right is None:
        return
    shape = view.shape_of(node.output[0])
    if view.shape_of(left.name) != shape:
        left, right = right, left
    narrow = view.shape_of(right.name)
    of_channels = view.is_map(node.output[0]) and narrow == (*shape[:2], 1, 1)
    if view.shape_of(left.name) != shape or not shape or (narrow != shape and not of_channels):
        return
    inner, name, activation = [node], node.output[0], "none"
    behind = activation_behind(name, view)
    if behind is not None and activation_bounds(behind.activation) is not None:
        inner, name, activation = [node, *behind.nodes], behind.output, behind.activation
    end = quantised_behind(name, view)
    if end is None or not all(map(taken.is_free, [*inner, end[0]])):
        return
    if not meets_integers([left.name, right.name], end[0].output[0], taken, view):
        return
    parameters = StepPairParameters(OPERATORS[node.op_type], activation)
    matches.add(end[0], PairMatch(left, right, parameters, end[0].output[0], end[1]), inner)


def step_pair(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """The layer of a sum or a product, filed under the node that rounds it."""
    found = view.matches.at(node, PairMatch)
    if found is None:
        return False
    sides = [found.left.name, found.right.name]
    shape = view.shape_of(found.output)
    is_rows = all(view.shape_of(name) == shape and not builder.tensor(name).block for name in sides)
    if view.is_map(found.output) and not is_rows:
        inputs, block = [channels_last(name, view, builder) for name in sides], shape[1]
    else:
        inputs, block = [builder.to_row_major(name) for name in sides], 0
    quanta = {"left": found.left.quantum, "right": found.right.quantum, "output": found.quantum}
    y = Activation(found.output, found.quantum.dtype, shape, block)
    weights = {name: quantum.array for name, quantum in quanta.items()}
    builder.emit(node.name, "pair_int8", inputs, [y], found.parameters, weights)
    return True


def join_steps(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Concat of the channels of feature maps of 8 bits."""
    shape, dtype = view.shape_of(node.output[0]), view.values[node.output[0]].dtype
    if not view.is_map(node.output[0]) or attribute(node, "axis", 0) % 4 != 1 or dtype not in EIGHT_BITS:
        return False
    if any(name in view.constants for name in node.input):
        return False
    pieces = [channels_last(name, view, builder) for name in node.input]
    builder.emit(
        node.name, "concat_int8", pieces, [Activation(node.output[0], dtype, shape, shape[1])], ReorderParameters()
    )
    return True
