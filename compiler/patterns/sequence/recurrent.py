"""Gated recurrent units: ONNX's GRU, and a Scan whose body is one (AUGRU has no operator of its own)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.sequence import RecurrentParameters, ResetPosition, SequenceOrder
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.shape_folding import ROWS
from veltair.compiler.patterns.sequence.gated_cell import read_cell
from veltair.errors import ModelError

ONNX_ORDER = (1, 0, 2)  # ONNX has update, reset, candidate; we have the reset first


@dataclass(frozen=True, slots=True)
class RecurrenceMatch:
    """A gated recurrent unit over a sequence, as GRU or Scan express it.

    >>> order, reset = SequenceOrder.STEPS_FIRST, ResetPosition.BEFORE_PRODUCT
    >>> RecurrenceMatch("x", order, reset, weights={}, last="h").states_order
    ('rows', 'steps', 'hidden')
    """

    x: str
    order: SequenceOrder  # of x
    reset: ResetPosition
    weights: Mapping[str, NDArray[np.float32]]
    scores: str = ""
    initial: str = ""  # "" where it is zero
    lengths: str = ""
    states: tuple[str, ...] = ()  # outputs that hold the states of all steps
    last: str = ""
    states_order: tuple[str, ...] = ("rows", "steps", "hidden")  # of the states' axes; "one" is the direction
    inner: tuple[onnx.NodeProto, ...] = ()  # nodes that need no layer of their own


def find_recurrences(view: ModelView) -> Matches:
    """Match every recurrence, and the nodes that make its initial zeros.

    Raises ModelError for one that is no gated recurrent unit.
    """
    matches, served = Matches(), set[int]()
    for node in view.nodes:
        if node.op_type in ("GRU", "Scan"):
            found = _match_gru(node, view) if node.op_type == "GRU" else _match_scan(node, view)
            matches.add(node, found, found.inner)
            if not found.initial:
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
    found = view.matches.at(node, RecurrenceMatch)
    if found is None:
        return False
    x = builder.to_row_major(found.x)
    first, second, width = x.shape
    rows, steps = (first, second) if found.order is SequenceOrder.ROWS_FIRST else (second, first)
    hidden = found.weights["recurrent"].shape[0]
    reads = {"x": x}
    shapes: dict[str, tuple[int, ...]] = {"scores": (first, second), "initial": (rows, hidden), "lengths": (rows,)}
    tensors = {"scores": found.scores, "initial": found.initial, "lengths": found.lengths}
    for name, tensor in tensors.items():
        if tensor:
            reads[name] = builder.reshape(builder.to_row_major(tensor), shapes[name])
    axes, end, inner = found.states_order, "".join(found.states[:1]), list[onnx.NodeProto]()
    if len(found.states) == 1:
        axes, end, inner = _absorb_transposes(end, axes, view)
    builder.take(inner)
    rows_first = axes.index("rows") < axes.index("steps")
    order = SequenceOrder.ROWS_FIRST if rows_first else SequenceOrder.STEPS_FIRST
    writes = {}
    if end:
        shape = (rows, steps, hidden) if rows_first else (steps, rows, hidden)
        writes["states"] = Activation(f"{end}/states", "float32", shape)
    if found.last:
        writes["last"] = Activation(f"{found.last}/last", "float32", (rows, hidden))
    parameters = RecurrentParameters(tuple(reads), tuple(writes), found.order, order, found.reset)
    flops = 2 * abs(rows) * steps * (width + hidden) * 3 * hidden
    builder.emit(node.name, "recurrent", list(reads.values()), list(writes.values()), parameters, found.weights, flops)
    for key, names in (("states", (end, *found.states[1:])), ("last", (found.last,))):
        for name in names:
            if key in writes and name:
                builder.alias(Activation(name, "float32", view.shape_of(name)), writes[key].name)
    return True


def _match_gru(node: onnx.NodeProto, view: ModelView) -> RecurrenceMatch:
    where = f"node {node.name!r}: GRU"
    x, w, r, b, lengths, initial = [*node.input, *[""] * 6][:6]
    direction = attribute(node, "direction", b"forward").decode()
    functions = [name.decode() for name in attribute(node, "activations", [b"Sigmoid", b"Tanh"])]
    clip = attribute(node, "clip", 0.0)
    if direction != "forward" or [name.lower() for name in functions] != ["sigmoid", "tanh"] or clip:
        raise ModelError(
            f"{where} is {direction} with {' and '.join(functions)}{f', clipped at {clip:g}' if clip else ''}; expected"
            " forward, Sigmoid and Tanh, and no clip"
        )
    if attribute(node, "layout", 0):
        raise ModelError(f"{where} has layout 1; expected 0")
    constants = view.constants
    if any(name and name not in constants for name in (w, r, b)) or x in constants:
        raise ModelError(f"{where} has computed weights or a constant sequence, which is not supported")
    hidden, steps = constants[r].shape[2], view.shape_of(x)[0]
    after = bool(attribute(node, "linear_before_reset", 0))
    biases = constants[b][0] if b else np.zeros(6 * hidden, np.float32)
    inner, outer = (_reorder_gates(part.reshape(1, -1), hidden)[0] for part in np.split(biases, 2))
    behind = np.zeros(hidden, np.float32)
    if after:
        behind, outer = outer[2 * hidden :], np.concatenate([outer[: 2 * hidden], behind])
    weights = {
        "input": _reorder_gates(constants[w][0].T, hidden),
        "recurrent": _reorder_gates(constants[r][0].T, hidden),
        "bias": inner + outer,
        "candidate_bias": behind,
    }
    if lengths in constants and lengths:
        if np.any(constants[lengths] != steps):
            raise ModelError(f"{where} has constant sequence lengths other than its {steps} steps")
        lengths = ""
    maker, order, swallowed = view.makers.get(x), SequenceOrder.STEPS_FIRST, []
    if maker is not None and maker.op_type == "Transpose" and attribute(maker, "perm", []) == [1, 0, 2]:
        swallowed = [maker] if view.only_user(x) is node else []
        x, order = maker.input[0], SequenceOrder.ROWS_FIRST
    y, last = (name if _is_read(name, view) else "" for name in [*node.output, "", ""][:2])
    return RecurrenceMatch(
        x,
        order,
        ResetPosition.AFTER_PRODUCT if after else ResetPosition.BEFORE_PRODUCT,
        weights,
        initial=_initial_state(initial, view, where),
        lengths=lengths,
        states=(y,) if y else (),
        last=last,
        states_order=("steps", "one", "rows", "hidden"),
        inner=tuple(swallowed),
    )


def _reorder_gates(columns: NDArray[Any], hidden: int) -> NDArray[np.float32]:
    """Gates in our order, along the last axis."""
    gates = columns.reshape(-1, 3, hidden)[:, ONNX_ORDER]
    return np.ascontiguousarray(gates.reshape(-1, 3 * hidden), np.float32)


def _match_scan(node: onnx.NodeProto, view: ModelView) -> RecurrenceMatch:
    where = f"node {node.name!r}: Scan"
    body, count = attribute(node, "body", None), attribute(node, "num_scan_inputs", 0)
    given = list(node.input[-count:])
    axes = set(attribute(node, "scan_input_axes", [0] * count))
    places = attribute(node, "scan_output_axes", [0] * (len(node.output) - 1))
    backward = any((*attribute(node, "scan_input_directions", []), *attribute(node, "scan_output_directions", [])))
    if len(node.input) != count + 1 or backward or len(axes) != 1 or not {*axes, *places} <= {0, 1}:
        raise ModelError(f"{where} is not supported; expected one state, all inputs along one axis, 0 or 1, forward")
    shapes = [view.shape_of(name) for name in given]
    if any(len(shape) != 3 for shape in shapes) or len(view.shape_of(node.input[0])) != 2:
        raise ModelError(f"{where} is not supported; expected a state (rows, units) and inputs (rows, steps, width)")
    names = [value.name for value in body.input]
    widths = dict(zip(names, (view.shape_of(node.input[0])[1], *(shape[2] for shape in shapes)), strict=True))
    inside = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in body.initializer}
    try:
        cell = read_cell(body, widths, {**view.constants, **inside})
    except LookupError as reason:
        raise ModelError(
            f"{where} is not supported: expected the body of a gated recurrent unit, but {reason.args[0]}"
        ) from None
    outside = dict(zip(names[1:], given, strict=True))
    last, *stacked = node.output
    states = [(n, p) for n, p, o in zip(stacked, places, body.output[1:], strict=True) if o.name in cell.states]
    read = [(name, place) for name, place in states if _is_read(name, view)]
    unknown = [n for n in stacked if _is_read(n, view) and n not in dict(read)]
    if unknown or len({place for _, place in read}) > 1:
        raise ModelError(f"{where} is not supported: its outputs are not all the states of the unit along one axis")
    order = ("rows", "steps") if not read or read[0][1] else ("steps", "rows")
    return RecurrenceMatch(
        outside[cell.x],
        SequenceOrder.ROWS_FIRST if axes == {1} else SequenceOrder.STEPS_FIRST,
        cell.reset,
        cell.weights,
        scores=outside[cell.score] if cell.score else "",
        initial=_initial_state(node.input[0], view, where),
        states=tuple(name for name, _ in read),
        last=last if _is_read(last, view) else "",
        states_order=(*order, "hidden"),
    )


def _is_read(name: str, view: ModelView) -> bool:
    return bool(name) and (name in view.output_names or bool(view.users_of(name)))


def _initial_state(name: str, view: ModelView, where: str) -> str:
    """The initial state, "" for zeros: a constant, or rows of one that are as many as the batch."""
    maker, value = view.makers.get(name), view.constants.get(name)
    if maker is not None and maker.op_type == ROWS:
        value = view.constants[maker.input[0]]
    if not name or (value is not None and not value.any()):
        return ""
    if name in view.constants:
        raise ModelError(f"{where} begins with a constant state other than zero, which is not supported")
    return name


def _only_initial_state(node: onnx.NodeProto, user: onnx.NodeProto) -> bool:
    """Whether a recurrence reads a node as its initial state alone; other nodes in front of it may do so as a whole."""
    if user.op_type not in ("GRU", "Scan"):
        return True
    start = 0 if user.op_type == "Scan" else 5
    return all(place == start for place, name in enumerate(user.input) if name in node.output)


def _absorb_transposes(
    name: str, axes: tuple[str, ...], view: ModelView
) -> tuple[tuple[str, ...], str, list[onnx.NodeProto]]:
    """The order of the states' axes behind the transposes that read them, the tensor there, and these nodes."""
    nodes: list[onnx.NodeProto] = []
    while (user := view.only_user(name)) is not None:
        shape, out = view.shape_of(name), view.shape_of(user.output[0])
        rest = tuple(axis for axis in axes if axis != "one")
        if user.op_type == "Transpose":
            moved = tuple(axes[i] for i in attribute(user, "perm", list(range(len(axes)))[::-1]))
        elif user.op_type in ("Squeeze", "Reshape") and out == tuple(
            extent for extent, axis in zip(shape, axes, strict=True) if axis != "one"
        ):
            moved = rest
        else:
            break
        if moved[-1] != "hidden":
            break
        axes, name = moved, user.output[0]
        nodes.append(user)
    return axes, name, nodes
