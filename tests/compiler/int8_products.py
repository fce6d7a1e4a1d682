"""Layers of products of 8-bit integers for the tests, and their comparison with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from run_kernels import run_kernel

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.quantised import Addend, QuantisedProductParameters, Window
from veltair.compiler.references.layer_reference import pack_activation, reference_outputs
from veltair.compiler.references.quantised_reference import steps_allowed

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
    if parameters.whole_bias:
        weights["bias"] = (np.rint(weights["bias"] / weights["scale"]) * weights["scale"]).astype(np.float32)
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
    "a bias of whole steps, saturated": product(
        (-7, 66), (-7, 130), Parameters("none", None, Addend.RESIDUAL, "uint8", whole_bias=True, saturates=True)
    ),
    "signed, a bias of whole steps": product(
        (-1, 24, 5, 4), (-1, 64, 5, 4), Parameters("relu", SQUARE, whole_bias=True), ("int8", "int8")
    ),
    "wide weights, a bias of whole steps": product(
        (-7, 66), (-7, 64), Parameters("none", None, Addend.BIAS, "int8", wide=True, whole_bias=True, saturates=True)
    ),
}
