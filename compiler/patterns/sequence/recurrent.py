"""Recurrent layers: ONNX's GRU, LSTM and RNN, and a Scan whose body is a gated recurrent unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.products import WeightStorage
from veltair.compiler.graph.parameters.sequence import (
    ProjectedRecurrentParameters,
    RecurrentParameters,
    SequenceOrder,
)
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.patterns.matmul import DenseLayer, multiplies_in_bf16
from veltair.compiler.patterns.sequence.recurrence_match import RecurrenceMatch
from veltair.compiler.patterns.sequence.recurrent_operators import CELLS, match_operator
from veltair.compiler.patterns.sequence.recurrent_scan import match_scan
from veltair.errors import ModelError
from veltair.profiles.artifact.manifest import shape_at

OPERATORS = frozenset({*CELLS, "Scan"})
FEW_ROWS = 64  # at the greatest batch: more rows keep all cores busy without sharing the units of a step


def find_recurrences(view: ModelView) -> Matches:
    """Match every recurrence, and the nodes that make its initial zeros.

    Filed under one that our kernels do not compute is the ModelError that says why.
    """
    matches, served = Matches(), set[int]()
    for node in view.nodes:
        if node.op_type in OPERATORS:
            try:
                found = match_scan(node, view) if node.op_type == "Scan" else match_operator(node, view)
            except ModelError as error:
                matches.add(node, error)
                continue
            matches.add(node, found, found.inner)
            if not found.initial and not found.initial_cell:
                served.add(id(node))
    # Nodes whose values only initial states of zeros depend on, from the last one back.
    for node in reversed(view.nodes):
        users = [user for name in node.output for user in view.users_of(name)]
        alone = bool(users) and not view.output_names.intersection(node.output)
        if alone and all(id(user) in served and _only_initial_state(node, user) for user in users):
            served.add(id(node))
            matches.add_inner([node])
    return matches


def recurrent(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Emit the layer of a recurrence. Raises ModelError for one that our kernels do not compute."""
    if (refused := view.matches.at(node, ModelError)) is not None:
        raise refused
    found = view.matches.at(node, RecurrenceMatch)
    if found is None:
        return False
    first, second, width = view.shape_of(found.x)
    rows, steps = (first, second) if found.order is SequenceOrder.ROWS_FIRST else (second, first)
    hidden, count = found.weights["recurrent"].shape[0], found.direction.extent
    state = (count, rows, hidden) if count == 2 else (rows, hidden)
    projects, weights = hidden >= _units_to_share(rows, view), found.weights
    if projects:
        reads = {"sums": _project(node.name, found, view, builder)}
        weights = {name: array for name, array in weights.items() if name in ("recurrent", "candidate_bias")}
    else:
        reads = {"x": builder.to_row_major(found.x)}
    for name, tensor, shape in (
        ("scores", found.scores, (first, second)),
        ("initial", found.initial, state),
        ("initial_cell", found.initial_cell, state),
        ("lengths", found.lengths, (rows,)),
    ):
        if tensor in view.constants:
            reads[name] = _constant_state(f"{node.name}/{name}", view.constants[tensor], shape, builder)
        elif tensor:
            reads[name] = builder.reshape(builder.to_row_major(tensor), shape)
    axes, end, inner = found.states_axes, "".join(found.states[:1]), list[onnx.NodeProto]()
    if len(found.states) == 1:
        axes, end, inner = _absorb_transposes(end, axes, count, view)
    builder.take(inner)
    order = _order(axes, count)
    assert order is not None
    writes = {}
    if end:
        shapes = {
            SequenceOrder.ROWS_FIRST: (rows, steps, count * hidden),
            SequenceOrder.STEPS_FIRST: (steps, rows, count * hidden),
            SequenceOrder.STEPS_THEN_DIRECTIONS: (steps, count, rows, hidden),
        }
        writes["states"] = Activation(f"{end}/states", "float32", shapes[order])
    for name, tensor in (("last", found.last), ("last_cell", found.last_cell)):
        if tensor:
            writes[name] = Activation(f"{tensor}/last", "float32", state)
    facts = (tuple(reads), tuple(writes), found.order, order, found.reset, found.cell, found.direction)
    flops = 2 * abs(rows) * steps * count * found.cell.gates * hidden
    if projects:
        storage = WeightStorage.BF16 if view.dtype == "uint16" else WeightStorage.FP32
        parameters: RecurrentParameters = ProjectedRecurrentParameters(*facts, found.activations, storage)
        op, flops = "projected_recurrent", flops * hidden
    else:
        op, parameters, flops = "recurrent", RecurrentParameters(*facts, found.activations), flops * (width + hidden)
    builder.emit(node.name, op, list(reads.values()), list(writes.values()), parameters, weights, flops)
    aliases = (("states", (end, *found.states[1:])), ("last", (found.last,)), ("last_cell", (found.last_cell,)))
    for key, names in aliases:
        for name in names:
            if key in writes and name:
                builder.alias(Activation(name, "float32", view.shape_of(name)), writes[key].name)
    return True


def _units_to_share(rows: int, view: ModelView) -> int:
    """Units from which on a layer of its own projects the inputs, and all cores share the units of a step."""
    (greatest,) = shape_at((rows,), view.max_batch)
    return 64 if greatest <= FEW_ROWS else 128


def _project(name: str, found: RecurrenceMatch, view: ModelView, builder: GraphBuilder) -> Activation:
    """Emit the product that gives all gates of all steps what they have of the inputs and the biases; its output is in
    the order of the steps, each gate's units padded to whole vectors."""

    def padded(array: NDArray[np.float32]) -> NDArray[np.float32]:
        gates = array.reshape(len(array), -1, len(found.weights["recurrent"]))
        return pad_axis(gates, 2, LANES).reshape(len(array), -1)

    first, second, _ = view.shape_of(found.x)
    weight, (bias,) = padded(found.weights["input"]), padded(found.weights["bias"][None])
    rows = first * second
    sums = Activation(f"{name}/sums", "uint16" if multiplies_in_bf16(rows, view) else "float32", (rows, len(bias)))
    DenseLayer(f"{name}/inputs", found.x, sums, weight, bias, "none").emit(view, builder)
    return builder.reshape(sums, (first, second, len(bias)))


def _constant_state(name: str, value: NDArray[Any], shape: tuple[int, ...], builder: GraphBuilder) -> Activation:
    """A layer that gives a constant initial state, one row of which stands for all; of a dynamic batch, of one
    direction."""
    *_, rows, hidden = shape
    if rows > 0:
        value = np.broadcast_to(value.reshape(*shape[:-2], -1, hidden), shape)
    table = np.ascontiguousarray(value.reshape(-1, hidden), np.float32)
    made = Activation(name, "float32", (rows if rows < 0 else len(table), hidden))
    builder.emit(name, "constant_rows", [], [made], weights={"table": table})
    return builder.reshape(made, shape)


def _only_initial_state(node: onnx.NodeProto, user: onnx.NodeProto) -> bool:
    """Whether a recurrence reads a node as its initial state alone; other nodes in front of it may do so as a whole."""
    if user.op_type not in OPERATORS:
        return True
    places = {0} if user.op_type == "Scan" else {5, 6}
    return all(place in places for place, name in enumerate(user.input) if name in node.output)


def _order(axes: tuple[str, ...], count: int) -> SequenceOrder | None:
    """The order in which the kernel writes states with these axes; None if it does not write them so.

    Without "directions", the last axis holds the units of all directions.
    """
    if axes[-1] != "hidden":
        return None
    if count == 1 or "directions" not in axes or axes[-2] == "directions":
        rows_first = axes.index("rows") < axes.index("steps")
        return SequenceOrder.ROWS_FIRST if rows_first else SequenceOrder.STEPS_FIRST
    found = axes == ("steps", "directions", "rows", "hidden")
    return SequenceOrder.STEPS_THEN_DIRECTIONS if found else None


def _absorb_transposes(
    name: str, axes: tuple[str, ...], count: int, view: ModelView
) -> tuple[tuple[str, ...], str, list[onnx.NodeProto]]:
    """The order of the states' axes behind the transposes and reshapes that read them, the tensor there, and these
    nodes."""
    nodes: list[onnx.NodeProto] = []
    best = axes, name, 0
    while (user := view.free_user(name)) is not None:
        shape, out = view.shape_of(name), view.shape_of(user.output[0])
        if user.op_type == "Transpose":
            axes = tuple(axes[i] for i in attribute(user, "perm", list(range(len(axes)))[::-1]))
        elif user.op_type in ("Squeeze", "Reshape") and out == _without_directions(shape, axes, count):
            axes = tuple(axis for axis in axes if axis != "directions")
        else:
            break
        name = user.output[0]
        nodes.append(user)
        if _order(axes, count) is not None:
            best = axes, name, len(nodes)
    axes, name, taken = best
    return axes, name, nodes[:taken]


def _without_directions(shape: tuple[int, ...], axes: tuple[str, ...], count: int) -> tuple[int, ...] | None:
    """The shape of states where the axis of directions has gone: left out if it is one, else merged with the units."""
    if "directions" not in axes or (count == 2 and axes[-2:] != ("directions", "hidden")):
        return None
    rest = [extent for extent, axis in zip(shape, axes, strict=True) if axis != "directions"]
    rest[-1] *= count if axes[-1] == "hidden" else 1
    return tuple(rest)
