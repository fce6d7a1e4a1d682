"""Products of 8-bit integers equal exact sums, rounded once, on every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_kernels import OLDER_CPUS, run_kernel

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.quantised import Addend, QuantisedProductParameters, Window
from veltair.compiler.kernels.int8.products import pack_quads
from veltair.compiler.tuning.layer_reference import pack_activation, reference_outputs
from veltair.compiler.tuning.quantised_reference import steps_allowed
from veltair.machine.isa import cpu_features

Parameters = QuantisedProductParameters
SQUARE = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
STRIDED = Window((5, 5), (2, 2), (1, 1), (2, 2, 2, 2))
DILATED = Window((3, 3), (1, 1), (2, 2), (2, 2, 2, 2))
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
STEPPED = Window((1, 1), (2, 2), (1, 1), (0, 0, 0, 0))


def product(
    x: tuple[int, ...], y: tuple[int, ...], parameters: Parameters, dtypes: tuple[str, str] = ("uint8", "uint8")
) -> LayerSpec:
    """Extreme weights and inputs are among the random ones: sums that saturate 16 bits occur."""
    rng, window = np.random.default_rng(0), parameters.window
    depth, columns = (x[1] * window.kernel[0] * window.kernel[1], y[1]) if window else (x[-1], y[-1])
    depth //= parameters.groups
    blocks = (x[1], y[1]) if window else (0, 0)
    inputs = [Activation("x", dtypes[0], x, blocks[0])]
    weights: dict[str, Any] = {
        "weight": rng.choice(np.array([-128, -127, 0, 5, 126, 127], np.int8), (depth, columns)),
        "scale": (rng.random(columns) * 0.01 / depth**0.5).astype(np.float32),
        "bias": rng.standard_normal(columns).astype(np.float32),
        "output": np.array([0.04, 60 if dtypes[1] == "uint8" else -20]),
    }
    if parameters.wide:
        weights["weight_zero"] = rng.integers(-127, 129, columns).astype(np.int32)
        weights["weight"] = weights["weight"].astype(np.int16) + weights["weight_zero"].astype(np.int16)
    if parameters.dynamic:
        inputs += [Activation("s", "float32", (1,)), Activation("z", "uint8", (1,))]
    else:
        weights["input"] = np.array([0.02, 113 if dtypes[0] == "uint8" else -7])
    if parameters.addend is Addend.BIAS:
        weights["added"] = rng.standard_normal(columns).astype(np.float32)
    if parameters.addend is Addend.RESIDUAL:
        inputs.append(Activation("r", "uint8", y, blocks[1]))
        weights["residual"] = np.array([0.03, 120])
    if parameters.between:
        weights["between"] = np.array([0.05, 100])
    if dtypes[1] == "float32":
        del weights["output"]
    op, output = "conv2d_int8" if window else "matmul_int8", Activation("y", dtypes[1], y, blocks[1])
    return LayerSpec("product", op, tuple(inputs), (output,), weights, 0, 4, parameters)


def agrees(spec: LayerSpec, point: dict[str, int | str], batch: int, mcpu: str) -> None:
    rng, inputs = np.random.default_rng(batch), []
    for tensor in spec.inputs:
        shape = tuple(-d * batch if d < 0 else d for d in tensor.shape)
        if tensor.dtype == "float32":
            inputs.append(np.full(shape, 0.37, np.float32))
            continue
        info = np.iinfo(tensor.dtype)
        steps = rng.integers(info.min, info.max, shape, tensor.dtype, endpoint=True)
        inputs.append(pack_activation(tensor, np.where(rng.random(shape) < 0.2, info.max, steps).astype(tensor.dtype)))
    found, expected = run_kernel(spec, point, inputs, batch, mcpu), reference_outputs(spec, inputs, batch)
    assert expected is not None
    a, b = found[0].astype(np.float64), expected[0].astype(np.float64)
    limit = steps_allowed(spec) if spec.outputs[0].dtype != "float32" else 1e-5 * np.abs(b).max()
    assert np.abs(a - b).max() <= limit, point
    assert len(np.unique(b)) > 10


CASES = {
    "columns and depth that fill nothing": product((-7, 66), (-7, 33), Parameters("none", None, Addend.BIAS, "uint8")),
    "signed steps and a residual": product(
        (-7, 64), (-7, 40), Parameters("relu", None, Addend.RESIDUAL, "uint8", "relu"), ("int8", "int8")
    ),
    "dynamic": product((-3, 61), (-3, 80), Parameters("gelu", dynamic=True), ("uint8", "float32")),
    "3x3": product((-1, 20, 6, 5), (-1, 24, 6, 5), Parameters("clip:0.0:6.0", SQUARE)),
    "strided, few channels": product(
        (-1, 3, 11, 11), (-1, 20, 6, 6), Parameters("relu", STRIDED, Addend.RESIDUAL, "int8"), ("int8", "uint8")
    ),
    "pointwise": product((-1, 35, 3, 5), (-1, 20, 3, 5), Parameters("none", POINT)),
    "every other place": product((-1, 8, 5, 5), (-1, 20, 3, 3), Parameters("none", STEPPED)),
    "groups": product((-1, 24, 5, 4), (-1, 96, 5, 4), Parameters("relu", SQUARE, groups=2)),
    "groups of wide weights at every place": product(
        (-1, 32, 3, 5), (-1, 64, 3, 5), Parameters("none", POINT, groups=4, wide=True), ("int8", "uint8")
    ),
    "wide weights": product((-7, 66), (-7, 33), Parameters("none", wide=True), ("uint8", "float32")),
    "dynamic wide weights beside the image": product(
        (-1, 6, 6, 5), (-1, 20, 6, 5), Parameters("none", SQUARE, dynamic=True, wide=True), ("uint8", "float32")
    ),
    "dilated": product((-1, 6, 7, 7), (-1, 20, 7, 7), Parameters("none", DILATED)),
}


ELSEWHERE = {  # the code around sums is the same on every instruction set
    "haswell": ("columns and depth that fill nothing", "dynamic", "3x3", "wide weights"),
    "skylake-avx512": ("signed steps and a residual",),
}


@pytest.mark.parametrize(
    ("name", "mcpu"), [(name, "") for name in CASES] + [(name, mcpu) for mcpu in ELSEWHERE for name in ELSEWHERE[mcpu]]
)
def test_kernels_equal_the_reference(name: str, mcpu: str) -> None:
    points = SPACES[CASES[name].op].points(CASES[name], OLDER_CPUS.get(mcpu, cpu_features()))
    agrees(CASES[name], points[-1], 3, mcpu)
    if name == "3x3":
        agrees(CASES[name], points[0], 1, mcpu)


@given(depth=st.integers(1, 9), columns=st.integers(1, 40), zero=st.integers(-128, 127), signed=st.booleans())
def test_packed_weights_and_their_compensation(depth: int, columns: int, zero: int, signed: bool) -> None:
    """Unpacked by hand, a product of one row equals that of what the steps stand for."""
    rng = np.random.default_rng(depth)
    weight = rng.integers(-128, 128, (depth, columns)).astype(np.int8)
    dtype, zero = ("int8", zero) if signed else ("uint8", zero + 128)
    x = Activation("x", dtype, (1, depth))
    weights = {"weight": weight, "input": np.array([0.1, zero])}
    spec = LayerSpec("p", "matmul_int8", (x,), (), weights, 0, 1, Parameters("none"))
    packed, start = pack_quads(spec, 16)
    steps = rng.integers(0, 256, depth).astype(np.uint8)  # as the kernel sees them: signed ones plus 128
    bytes_ = packed.view(np.int8).reshape(*packed.shape, 4).transpose(1, 3, 0, 2).reshape(-1, start.size)
    sums = start + steps.astype(np.int64) @ bytes_[:depth]
    meant = steps.astype(np.int64) - (128 if signed else 0) - zero
    assert np.array_equal(sums[:columns], meant @ weight.astype(np.int64))
