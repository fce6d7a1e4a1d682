"""The reference of recurrent layers in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.products import WeightStorage
from veltair.compiler.graph.parameters.sequence import (
    Cell,
    Direction,
    ProjectedRecurrentParameters,
    RecurrentParameters,
    ResetPosition,
    SequenceOrder,
)
from veltair.compiler.references.reference_arithmetic import apply_activation, bf16_to_float32, float32_to_bf16

Array = NDArray[Any]


def reference_recurrent(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """A recurrent cell over all steps, each direction by itself, in float64 except for its activation functions.

    Of "projected_recurrent", the first input is what the inputs give the gates, padded to whole vectors.
    """
    parameters = spec.parameters_as(RecurrentParameters)
    tensors = dict(zip(parameters.reads, x, strict=True))
    rows_first = parameters.x_order is SequenceOrder.ROWS_FIRST
    for name in {"x", "sums", "scores"} & tensors.keys():
        tensors[name] = tensors[name] if rows_first else tensors[name].swapaxes(0, 1)
    count, hidden = parameters.direction.extent, len(spec.weights["recurrent"])
    for name in {"initial", "initial_cell"} & tensors.keys():
        tensors[name] = tensors[name].reshape(count, -1, hidden).swapaxes(0, 1)  # (rows, directions, hidden)
    directions = [_run_direction(spec, parameters, tensors, place) for place in range(count)]
    states, last, last_cell = (np.stack(found, axis=-2) for found in zip(*directions, strict=True))
    orders = {
        SequenceOrder.ROWS_FIRST: (0, 1, 2, 3),
        SequenceOrder.STEPS_FIRST: (1, 0, 2, 3),
        SequenceOrder.STEPS_THEN_DIRECTIONS: (1, 2, 0, 3),
    }
    outputs = {
        "states": states.transpose(orders[parameters.y_order]),
        "last": last.swapaxes(0, 1),
        "last_cell": last_cell.swapaxes(0, 1),
    }
    rows = len(x[0]) if rows_first else x[0].shape[1]
    return [
        outputs[name].reshape([rows if extent < 0 else extent for extent in tensor.shape])
        for name, tensor in zip(parameters.writes, spec.outputs, strict=True)
    ]


def _run_direction(
    spec: LayerSpec, parameters: RecurrentParameters, tensors: dict[str, Array], place: int
) -> tuple[Array, Array, Array]:
    """The states (rows, steps, hidden) of a direction, its last state and its last cell state (rows, hidden)."""
    hidden, gates, count = len(spec.weights["recurrent"]), parameters.cell.gates, parameters.direction.extent
    weights = {
        name: array.astype(np.float64).reshape(*array.shape[:-1], count, -1)[..., place, :]
        for name, array in spec.weights.items()
    }
    multiply = _product(parameters)
    if "x" in tensors:
        inner = tensors["x"] @ weights["input"] + weights["bias"]
    else:
        inner = tensors["sums"].reshape(*tensors["sums"].shape[:2], count, -1)[:, :, place]
    rows, steps, _ = inner.shape
    inner = inner.reshape(rows, steps, gates, -1)[..., :hidden]
    h, cell = (
        tensors[name][:, place].astype(np.float64) if name in tensors else np.zeros((rows, hidden))
        for name in ("initial", "initial_cell")
    )
    states = np.zeros((rows, steps, hidden))
    backward = parameters.direction is Direction.REVERSE or place == 1
    for step in range(steps)[:: -1 if backward else 1]:
        score = tensors["scores"].reshape(rows, steps)[:, step : step + 1] if "scores" in tensors else None
        new, new_cell = _advance(parameters, weights, multiply, inner[:, step].swapaxes(0, 1), h, cell, score)
        runs = (step < tensors["lengths"])[:, None] if "lengths" in tensors else np.ones((rows, 1), bool)
        h, cell = np.where(runs, new, h), np.where(runs, new_cell, cell)
        states[:, step] = np.where(runs, h, 0)
    if "lengths" in tensors:  # a row without steps has zeros, as in ONNX Runtime
        h, cell = (np.where(tensors["lengths"][:, None] > 0, value, 0) for value in (h, cell))
    return states, h, cell


def _product(parameters: RecurrentParameters) -> Callable[[Array, Array], Array]:
    """The product of a state with weights: of values rounded to bfloat16 where the layer stores its weights so."""
    if not isinstance(parameters, ProjectedRecurrentParameters) or parameters.storage is not WeightStorage.BF16:
        return np.matmul

    def rounded(values: Array) -> Array:
        return bf16_to_float32(float32_to_bf16(values.astype(np.float32))).astype(np.float64)

    return lambda state, weight: rounded(state) @ rounded(weight)


def _advance(
    parameters: RecurrentParameters,
    weights: dict[str, Array],
    multiply: Callable[[Array, Array], Array],
    inner: Array,
    h: Array,
    cell: Array,
    score: Array | None,
) -> tuple[Array, Array]:
    """The new state and cell state. inner: the products with the inputs, (gates, rows, hidden)."""
    f, g, k = (_activation(function) for function in parameters.activations)
    hidden = h.shape[1]
    outer = multiply(h, weights["recurrent"]).reshape(len(h), -1, hidden).swapaxes(0, 1)
    if parameters.cell is Cell.RNN:
        return g(inner[0] + outer[0]), cell
    if parameters.cell is Cell.LSTM:
        given, out, forget = (f(value) for value in (inner + outer)[:3])
        cell = forget * cell + given * g(inner[3] + outer[3])
        return out * k(cell), cell
    reset, update = (f(value) for value in (inner + outer)[:2])
    if parameters.reset is ResetPosition.AFTER_PRODUCT:
        mixed = reset * (outer[2] + weights["candidate_bias"])
    else:
        mixed = multiply(reset * h, weights["recurrent"][:, 2 * hidden :])
    candidate = g(inner[2] + mixed)
    if score is not None:
        update = update * (1 - score)
    return update * h + (1 - update) * candidate, cell


def _activation(name: str) -> Callable[[Array], Array]:
    exact: dict[str, Callable[[Array], Array]] = {"sigmoid": lambda v: 1 / (1 + np.exp(-v)), "tanh": np.tanh}
    return exact.get(name, lambda value: apply_activation(value.astype(np.float32), name))
