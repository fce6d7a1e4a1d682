"""Gated recurrent units: the kernel against numpy, in every order of its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from run_kernels import compile_ahead, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.sequence import RecurrentParameters, ResetPosition, SequenceOrder
from veltair.machine.isa import cpu_features

STEPS_FIRST, AFTER_PRODUCT = SequenceOrder.STEPS_FIRST, ResetPosition.AFTER_PRODUCT
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
) -> LayerSpec:
    rows = order is SequenceOrder.ROWS_FIRST
    shapes: dict[str, tuple[int, ...]] = {
        "x": (-1, steps, inputs) if rows else (steps, -1, inputs),
        "scores": (-1, steps) if rows else (steps, -1),
        "initial": (-1, hidden),
        "lengths": (-1,),
        "last": (-1, hidden),
        "states": (-1, steps, hidden) if rows else (steps, -1, hidden),
    }
    weights = {
        "input": drawn(inputs, 3 * hidden),
        "recurrent": drawn(hidden, 3 * hidden) / np.sqrt(hidden),
        "bias": drawn(3 * hidden),
        "candidate_bias": drawn(hidden),
    }
    types = {"lengths": "int32"}
    parameters = RecurrentParameters(reads, writes, order, order, reset)
    tensors = [tuple(Activation(n, types.get(n, "float32"), shapes[n]) for n in names) for names in (reads, writes)]
    return LayerSpec("unit", "recurrent", tensors[0], tensors[1], weights, 1, 64, parameters)


@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize(
    "spec",
    [
        unit(9, 8, 8, writes=("states", "last")),
        unit(5, 3, 17, reads=("x", "scores", "initial")),
        unit(6, 9, 13, ("x", "scores", "lengths"), ("states", "last"), STEPS_FIRST, AFTER_PRODUCT),
        unit(1, 1, 1, writes=("last",)),
    ],
    ids=["plain", "scores", "lengths", "one"],
)
def test_every_way_equals_numpy(spec: LayerSpec, mcpu: str) -> None:
    rows = 19  # one row more than fills no tile

    def value(tensor: Activation) -> NDArray[Any]:
        shape = tuple(-d * rows if d < 0 else d for d in tensor.shape)
        if tensor.name == "lengths":
            return random.integers(0, 7, shape).astype(np.int32)
        return random.random(shape, dtype=np.float32) if tensor.name == "scores" else drawn(*shape)

    values = [value(tensor) for tensor in spec.inputs]
    points = SPACES["recurrent"].points(spec, frozenset({"avx2"}) if mcpu else cpu_features())
    for point in compile_ahead(spec, (points[0], points[-1]) if not mcpu else points[-1:], mcpu):
        error, _ = run_and_compare(spec, point, values, rows, mcpu)
        assert error < 2e-6, point
