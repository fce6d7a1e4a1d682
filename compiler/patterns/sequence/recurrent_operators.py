"""ONNX's recurrent operators: GRU, LSTM and RNN, with their weights in the order of our kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.graph.parameters.sequence import Cell, Direction, ResetPosition, SequenceOrder
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.patterns.sequence.recurrence_match import RecurrenceMatch, initial_state, is_read
from veltair.errors import ModelError

CELLS: Mapping[str, Cell] = {"GRU": Cell.GRU, "LSTM": Cell.LSTM, "RNN": Cell.RNN}
# ONNX's number of each of our gates: its GRU has update, reset, candidate, and we have the reset first.
GATE_ORDERS: Mapping[Cell, tuple[int, ...]] = {Cell.GRU: (1, 0, 2), Cell.LSTM: (0, 1, 2, 3), Cell.RNN: (0,)}
DEFAULT_FUNCTIONS: Mapping[Cell, tuple[str, ...]] = {
    Cell.GRU: ("Sigmoid", "Tanh"),
    Cell.LSTM: ("Sigmoid", "Tanh", "Tanh"),
    Cell.RNN: ("Tanh",),
}
# Functions that kernels have, by ONNX's names in lower case, and the defaults of their alpha and beta.
FUNCTIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "sigmoid": ("sigmoid", ()),
    "tanh": ("tanh", ()),
    "relu": ("relu", ()),
    "leakyrelu": ("leaky", (0.01,)),
    "elu": ("elu", (1.0,)),
    "hardsigmoid": ("hardsigmoid", (0.2, 0.5)),
}


def match_operator(node: onnx.NodeProto, view: ModelView) -> RecurrenceMatch:
    """The recurrence that a node computes. Raises ModelError, which names the attribute or input that is not
    supported."""
    where, cell = f"node {node.name!r}: {node.op_type}", CELLS[node.op_type]
    x, w, r, b, lengths, initial, initial_cell, peepholes = [*node.input, *[""] * 8][:8]
    direction = _direction(node, where)
    _refuse_unsupported(node, where)
    constants = view.constants
    if any(name and name not in constants for name in (w, r, b)) or x in constants:
        raise ModelError(f"{where} has computed weights or a constant sequence, which is not supported")
    if peepholes and (peepholes not in constants or constants[peepholes].any()):
        raise ModelError(f"{where}: input P (peepholes) is not supported")
    order, steps = SequenceOrder.STEPS_FIRST, view.shape_of(x)[0]
    if lengths in constants and lengths:
        if np.any(constants[lengths] != steps):
            raise ModelError(f"{where} has constant sequence lengths other than its {steps} steps")
        lengths = ""
    maker, swallowed = view.makers.get(x), list[onnx.NodeProto]()
    if maker is not None and maker.op_type == "Transpose" and attribute(maker, "perm", []) == [1, 0, 2]:
        swallowed = [maker] if view.only_user(x) is node else []
        x, order = maker.input[0], SequenceOrder.ROWS_FIRST
    initial, initial_cell = initial_state(initial, view), initial_state(initial_cell, view)
    dynamic = view.shape_of(node.input[0])[1] < 0
    if dynamic and direction.extent == 2 and {initial, initial_cell} & constants.keys():
        raise ModelError(f"{where} begins with constant states other than zero, two for each row of a dynamic batch")
    after = cell is Cell.GRU and bool(attribute(node, "linear_before_reset", 0))
    y, last, last_cell = (name if is_read(name, view) else "" for name in [*node.output, "", "", ""][:3])
    return RecurrenceMatch(
        x,
        order,
        ResetPosition.AFTER_PRODUCT if after else ResetPosition.BEFORE_PRODUCT,
        _weights(cell, constants[w], constants[r], constants[b] if b else None, after),
        cell,
        direction,
        _functions(node, cell, direction, where),
        initial=initial,
        initial_cell=initial_cell,
        lengths=lengths,
        states=(y,) if y else (),
        last=last,
        last_cell=last_cell,
        states_axes=("steps", "directions", "rows", "hidden"),
        inner=tuple(swallowed),
    )


def _direction(node: onnx.NodeProto, where: str) -> Direction:
    named = attribute(node, "direction", b"forward").decode()
    if named not in set(Direction):
        raise ModelError(f"{where}: attribute direction={named!r}; expected forward, reverse or bidirectional")
    return Direction(named)


def _refuse_unsupported(node: onnx.NodeProto, where: str) -> None:
    for name in ("clip", "input_forget"):
        value = attribute(node, name, 0)
        if value:
            raise ModelError(f"{where}: attribute {name}={value:g} is not supported")


def _functions(node: onnx.NodeProto, cell: Cell, direction: Direction, where: str) -> tuple[str, str, str]:
    """The functions of the gates, the candidate and the cell state, as `codegen.activation` names them."""
    default = DEFAULT_FUNCTIONS[cell]
    named = [name.decode() for name in attribute(node, "activations", [])] or [*default] * direction.extent
    numbers = [iter(attribute(node, f"activation_{letter}", [])) for letter in ("alpha", "beta")]
    functions = [_function(name, numbers) for name in named]
    functions = functions[: direction.extent * len(default)]  # the schema's default for RNN has one for each direction
    both = [functions[start : start + len(default)] for start in range(0, len(functions), len(default))]
    if None in functions or len(both) != direction.extent or any(found != both[0] for found in both):
        raise ModelError(
            f"{where}: attribute activations={named} is not supported; expected {len(default)} of "
            f"{', '.join(FUNCTIONS)} for each direction, the same for both"
        )
    found = [function for function in both[0] if function is not None]
    if cell is Cell.RNN:
        return "sigmoid", found[0], "tanh"
    return found[0], found[1], found[2] if len(found) > 2 else "tanh"


def _function(name: str, numbers: Sequence[Iterator[float]]) -> str | None:
    """A function with its alpha and beta, which are the next that the node gives for functions that take them."""
    kind, defaults = FUNCTIONS.get(name.lower(), (None, ()))
    if kind is None:
        return None
    values = [float(next(given, default)) for given, default in zip(numbers, defaults, strict=False)]
    return ":".join([kind, *map(repr, values)])


def _weights(
    cell: Cell, w: NDArray[Any], r: NDArray[Any], b: NDArray[Any] | None, after: bool
) -> Mapping[str, NDArray[np.float32]]:
    """Weights by input, with columns by direction, gate and unit. after: a GRU's reset comes after the product."""
    count, hidden, gates = len(r), r.shape[2], len(GATE_ORDERS[cell])

    def by_gates(rows: NDArray[Any]) -> NDArray[np.float32]:
        """(directions, gates x hidden, …) -> (directions, gates, hidden, …), in our order of gates."""
        split = rows.reshape(count, gates, hidden, -1)[:, GATE_ORDERS[cell]]
        return np.asarray(split, np.float32)

    def columns(split: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.ascontiguousarray(split.reshape(-1, split.shape[-1]).T)

    biases = np.zeros((count, 2 * gates * hidden), np.float32) if b is None else b
    inner, outer = (by_gates(part) for part in np.split(biases, 2, axis=1))
    behind = np.zeros((count, hidden), np.float32)
    if after:
        behind = outer[:, 2, :, 0].copy()
        outer = np.concatenate([outer[:, :2], np.zeros_like(outer[:, 2:])], axis=1)
    weights = {"input": columns(by_gates(w)), "recurrent": columns(by_gates(r)), "bias": (inner + outer).reshape(-1)}
    if cell is Cell.GRU:
        weights["candidate_bias"] = behind.reshape(-1)
    return weights
