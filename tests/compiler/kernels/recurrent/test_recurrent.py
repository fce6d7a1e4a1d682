"""Recurrent cells: the kernel against numpy, in every order of its inputs and outputs."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from run_kernels import compile_ahead, require_features, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.products import WeightStorage
from veltair.compiler.graph.parameters.sequence import (
    Cell,
    Direction,
    ProjectedRecurrentParameters,
    RecurrentParameters,
    ResetPosition,
    SequenceOrder,
)
from veltair.machine.isa import cpu_features

STEPS_FIRST, AFTER_PRODUCT = SequenceOrder.STEPS_FIRST, ResetPosition.AFTER_PRODUCT
BOTH, THEN_DIRECTIONS = Direction.BIDIRECTIONAL, SequenceOrder.STEPS_THEN_DIRECTIONS
ALL_READ, ALL_WRITTEN = ("x", "initial", "initial_cell", "lengths"), ("states", "last", "last_cell")
RELU = ("relu", "relu", "tanh")
random = np.random.default_rng(11)


def drawn(*shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def unit(
    steps: int,
    inputs: int,
    hidden: int,
    reads: tuple[str, ...] = ("x",),
    writes: tuple[str, ...] = ("states",),
    order: SequenceOrder = SequenceOrder.ROWS_FIRST,
    reset: ResetPosition = ResetPosition.BEFORE_PRODUCT,
    cell: Cell = Cell.GRU,
    direction: Direction = Direction.FORWARD,
    activations: tuple[str, str, str] = ("sigmoid", "tanh", "tanh"),
    y_order: SequenceOrder | None = None,
    max_batch: int = 64,
) -> LayerSpec:
    rows, count, y_order = order is SequenceOrder.ROWS_FIRST, direction.extent, y_order or order
    state = (count, -1, hidden)
    states = {
        SequenceOrder.ROWS_FIRST: (-1, steps, count * hidden),
        SequenceOrder.STEPS_FIRST: (steps, -1, count * hidden),
        SequenceOrder.STEPS_THEN_DIRECTIONS: (steps, count, -1, hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "x": (-1, steps, inputs) if rows else (steps, -1, inputs),
        "scores": (-1, steps) if rows else (steps, -1),
        "lengths": (-1,),
        "states": states[y_order],
        **dict.fromkeys(("initial", "initial_cell", "last", "last_cell"), state),
    }
    weights = {
        "input": drawn(inputs, count * cell.gates * hidden),
        "recurrent": drawn(hidden, count * cell.gates * hidden) / np.sqrt(hidden),
        "bias": drawn(count * cell.gates * hidden),
    }
    if cell is Cell.GRU:
        weights["candidate_bias"] = drawn(count * hidden)
    types = {"lengths": "int32"}
    parameters = RecurrentParameters(reads, writes, order, y_order, reset, cell, direction, activations)
    tensors = [tuple(Activation(n, types.get(n, "float32"), shapes[n]) for n in names) for names in (reads, writes)]
    return LayerSpec("unit", "recurrent", tensors[0], tensors[1], weights, 1, max_batch, parameters)


UNITS = [
    unit(9, 8, 8, writes=("states", "last")),
    unit(5, 3, 17, reads=("x", "scores", "initial")),
    unit(6, 9, 13, ("x", "scores", "lengths"), ("states", "last"), STEPS_FIRST, AFTER_PRODUCT),
    unit(1, 1, 1, writes=("last",)),
    unit(4, 3, 17, ALL_READ, ALL_WRITTEN, STEPS_FIRST, cell=Cell.LSTM, direction=BOTH),
    unit(5, 7, 32, ALL_READ, ALL_WRITTEN, cell=Cell.LSTM, direction=BOTH),
    unit(5, 7, 20, writes=("states",), cell=Cell.LSTM, direction=BOTH, y_order=THEN_DIRECTIONS, max_batch=32),
    unit(3, 2, 9, ("x", "lengths"), ("last", "last_cell"), cell=Cell.LSTM, direction=Direction.REVERSE),
    unit(6, 9, 33, ("x", "initial", "lengths"), ("states", "last"), STEPS_FIRST, AFTER_PRODUCT, direction=BOTH),
    unit(6, 5, 16, ("x", "scores"), ("states",), direction=BOTH, max_batch=32),
    unit(4, 5, 24, writes=("states", "last"), cell=Cell.RNN, direction=Direction.REVERSE),
    unit(4, 5, 7, ("x", "lengths"), ("last",), cell=Cell.RNN, direction=BOTH, activations=(*(2 * ["relu"]), "tanh")),
]
NAMES = [
    *("plain", "scores", "lengths", "one", "lstm", "lstm-rows", "lstm-onnx", "lstm-reverse"),
    *("gru-both", "augru-both", "rnn-reverse", "rnn-relu"),
]


def inputs_of(spec: LayerSpec, rows: int) -> list[NDArray[Any]]:
    def value(tensor: Activation) -> NDArray[Any]:
        shape = tuple(-d * rows if d < 0 else d for d in tensor.shape)
        if tensor.name == "lengths":
            return random.integers(0, 7, shape).astype(np.int32)
        return random.random(shape, dtype=np.float32) if tensor.name == "scores" else drawn(*shape)

    return [value(tensor) for tensor in spec.inputs]


@pytest.mark.sweep(7)
@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize("spec", UNITS, ids=NAMES)
@pytest.mark.parametrize("first", range(4))
def test_every_way_equals_numpy(spec: LayerSpec, first: int, mcpu: str) -> None:
    rows = 19  # one row more than fills no tile
    values = inputs_of(spec, rows)
    points = SPACES["recurrent"].points(spec, frozenset({"avx2"}) if mcpu else cpu_features())
    for point in compile_ahead(spec, points[first % len(points) :: 4], mcpu):
        error, _ = run_and_compare(spec, point, values, rows, mcpu)
        assert error < 2e-6, point


def projected(spec: LayerSpec, storage: WeightStorage) -> LayerSpec:
    """The layer with what its inputs give the gates as first input."""
    parameters, x = spec.parameters_as(RecurrentParameters), spec.inputs[0]
    hidden, count = len(spec.weights["recurrent"]), parameters.direction.extent
    width = count * parameters.cell.gates * (hidden + -hidden % 16)
    sums = Activation("sums", "float32", (*x.shape[:2], width))
    reads = ProjectedRecurrentParameters(("sums", *parameters.reads[1:]), *astuple(parameters)[1:], storage=storage)
    weights = {name: spec.weights[name] for name in ("recurrent", "candidate_bias") if name in spec.weights}
    inputs = (sums, *spec.inputs[1:])
    return replace(spec, op="projected_recurrent", inputs=inputs, weights=weights, parameters=reads)


@pytest.mark.sweep(7)
@pytest.mark.parametrize("first", range(2))
@pytest.mark.parametrize(
    ("storage", "mcpu"), [(WeightStorage.FP32, ""), (WeightStorage.FP32, "haswell"), (WeightStorage.BF16, "")]
)
@pytest.mark.parametrize("spec", UNITS, ids=NAMES)
def test_projected_cells_equal_numpy_for_one_row_and_for_many(
    spec: LayerSpec, storage: WeightStorage, first: int, mcpu: str
) -> None:
    if storage is WeightStorage.BF16:
        require_features(frozenset({"avx512_bf16"}), "dot products of bfloat16")
    spec = projected(spec, storage)
    points = SPACES[spec.op].points(spec, frozenset({"avx2"}) if mcpu else cpu_features())
    for point in compile_ahead(spec, points[first % len(points) :: 2], mcpu):
        for rows in (1, 5, 8, 19):
            error, _ = run_and_compare(spec, point, inputs_of(spec, rows), rows, mcpu)
            assert error < (2e-6 if storage is WeightStorage.FP32 else 1e-3), point


@pytest.mark.parametrize("storage", [WeightStorage.FP32, WeightStorage.BF16])
def test_threads_share_the_units_of_a_projected_cell(storage: WeightStorage) -> None:
    """Units enough for all threads to compute some at the same time."""
    if storage is WeightStorage.BF16:
        require_features(frozenset({"avx512_bf16"}), "dot products of bfloat16")
    spec = projected(unit(20, 1, 300, ALL_READ, ALL_WRITTEN, cell=Cell.LSTM, direction=BOTH), storage)
    for point in compile_ahead(spec, SPACES[spec.op].points(spec, cpu_features())):
        for rows in (1, 7):
            error, _ = run_and_compare(spec, point, inputs_of(spec, rows), rows)
            assert error < (1e-5 if storage is WeightStorage.FP32 else 5e-3), point
