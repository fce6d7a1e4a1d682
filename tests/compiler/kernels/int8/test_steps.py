"""Kernels from steps to steps equal the reference: tables, pairs, concatenations; and pixels that are picked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from run_kernels import OLDER_CPUS, compile_ahead, run_kernel

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.parameters import LayerParameters
from veltair.compiler.graph.parameters.quantised import ReorderParameters, StepPairParameters
from veltair.compiler.references.layer_reference import pack_activation, reference_outputs, unpack_activation
from veltair.machine.isa import cpu_features

CPUS = ["", "skylake-avx512", "haswell"]
TABLE = np.random.default_rng(5).permutation(256).astype(np.uint8)


def images(name: str, channels: int, size: tuple[int, int], dtype: str = "uint8") -> Activation:
    return Activation(name, dtype, (-1, channels, *size), channels)


QUANTA = {"input": np.array([0.05, 100]), "output": np.array([0.02, 60])}
MAP = images("a", 37, (5, 3))


def layer(
    op: str,
    inputs: Sequence[Activation],
    output: Activation,
    weights: Mapping[str, NDArray[Any]] | None = None,
    parameters: LayerParameters | None = None,
) -> LayerSpec:
    return LayerSpec(op, op, tuple(inputs), (output,), weights or {}, 0, 4, parameters or ReorderParameters())


def pair(operator: str, activation: str, *tensors: Activation) -> LayerSpec:
    quanta = {"left": (0.05, 120), "right": (0.02, 7), "output": (0.06, 33)}
    weights = {name: np.array(quantum) for name, quantum in quanta.items()}
    return layer("pair_int8", tensors[:2], tensors[2], weights, StepPairParameters(operator, activation))


CASES = {
    "a table": layer("table_int8", [images("x", 20, (7, 9))], images("y", 20, (7, 9)), {"table": TABLE}),
    "a table of signed steps": layer(
        "table_int8",
        [Activation("x", "int8", (-3, 41))],
        Activation("y", "int8", (-3, 41)),
        {"table": TABLE.view(np.int8)},
    ),
    "a sum": pair("add", "none", *(Activation(name, "uint8", (-1, 9, 21)) for name in "abc")),
    "a sum, bounded": pair("add", "clip:0.5:6.0", *(images(name, 40, (5, 3)) for name in "abc")),
    "a product of signed steps": pair("mul", "relu", *(images(name, 16, (4, 4), "int8") for name in "abc")),
    "a number a channel": pair(
        "mul", "none", images("a", 37, (5, 3)), images("b", 37, (1, 1)), images("c", 37, (5, 3))
    ),
    "channels side by side": layer(
        "concat_int8",
        [images("a", 3, (5, 7)), images("b", 150, (5, 7)), images("c", 80, (5, 7))],
        images("y", 233, (5, 7)),
    ),
    "means of planes": layer("mean_int8", [images("x", 150, (7, 9))], images("y", 150, (1, 1)), QUANTA),
    "means of few channels": layer(
        "mean_int8", [images("x", 9, (2, 1))], images("y", 9, (1, 1)), QUANTA | {"output": np.array([0.08, 100])}
    ),
    "blocks of channels become pixels": layer("depth_to_space", [images("x", 4 * 70, (3, 5))], images("y", 70, (6, 9))),
}


@pytest.mark.parametrize("mcpu", CPUS)
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_reference(name: str, mcpu: str) -> None:
    spec = CASES[name]
    rng = np.random.default_rng(0)
    points = SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, cpu_features()))
    inputs = []
    for tensor in spec.inputs:
        info = np.iinfo(tensor.dtype)
        steps = rng.integers(info.min, info.max, tensor.at(3), tensor.dtype, endpoint=True)
        inputs.append(steps)
    for point in compile_ahead(spec, points, mcpu):
        (found,), expected = run_kernel(spec, point, inputs, 3, mcpu), reference_outputs(spec, inputs, 3)
        assert expected is not None
        assert len(np.unique(expected[0])) > 20
        most = 1 if spec.op in ("pair_int8", "mean_int8") else 0  # values next to a middle go either way
        assert np.abs(found.astype(int) - expected[0].astype(int)).max() <= most, point


@pytest.mark.parametrize("kind", ["float32", "uint16", "uint8"])
def test_picked_pixels_equal_the_reference(kind: str) -> None:
    """Inside of halos, whatever is stored."""
    block = {"float32": 16, "uint16": 32, "uint8": 70}[kind]
    x = Activation("x", kind, (-1, 70, 4, 5), block, Halo() if kind == "uint8" else Halo(1, 2, 1, 0))
    y = Activation("y", kind, (-1, 70, 7, 6), block, Halo() if kind == "uint8" else Halo(0, 1, 2, 1))
    weights = {"rows": np.array([3, 3, 0, 1, 1, 2, 0], np.int32), "columns": np.array([4, 0, 0, 2, 3, 1], np.int32)}
    spec = layer("pick_pixels", [x], y, weights)
    values = np.random.default_rng(0).integers(0, 250, (2, 70, 4, 5)).astype("uint8" if kind == "uint8" else "float32")
    inputs = [pack_activation(x, values)]
    for point in SPACES["pick_pixels"].points(spec, cpu_features()):
        (found,) = run_kernel(spec, point, inputs, 2)
        picked = values[:, :, weights["rows"]][:, :, :, weights["columns"]]
        np.testing.assert_array_equal(unpack_activation(y, found), picked)
