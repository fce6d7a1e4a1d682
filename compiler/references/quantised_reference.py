"""References of the layers on 8-bit integers, in exact sums and double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.quantised import (
    Addend,
    QuantisedPoolParameters,
    QuantisedProductParameters,
    StepPairParameters,
    Window,
)
from veltair.compiler.references.reference_arithmetic import apply_activation
from veltair.compiler.stitch.stitched_parameters import StitchedParameters

Array = NDArray[Any]
JUMPS = 1e-3  # share of the values of a layer that rounds floats
LEAN = 1e-4  # steps from the middle of two, within which a kernel in single precision may take either


def reference_product(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """last(quantise(first(scale * (x @ weight) + bias)) + addend), quantised."""
    parameters = spec.parameters_as(QuantisedProductParameters)
    scale, zero = (x[1].item(), x[2].item()) if parameters.dynamic else (1.0, spec.weights["input"][1])
    values = x[0].astype(np.float64) - float(zero)
    weight = spec.weights["weight"].astype(np.float64)
    if parameters.window is not None:
        values = windows(values, parameters.window, spec.outputs[0].shape[2:])
    if spec.op == "depthwise_int8":
        sums = np.einsum("nrctk,tk->nrck", values.reshape(*values.shape[:3], -1, x[0].shape[1]), weight)
    elif parameters.groups > 1:
        taps = values.reshape(*values.shape[:3], -1, x[0].shape[1])
        parts = np.split(taps, parameters.groups, axis=-1), np.split(weight, parameters.groups, axis=1)
        sums = np.concatenate([a.reshape(*a.shape[:3], -1) @ b for a, b in zip(*parts, strict=True)], axis=-1)
    else:
        sums = values @ weight
    value = sums * (scale * spec.weights["scale"].astype(np.float64)) + spec.weights["bias"]
    value = apply_activation(value.astype(np.float32), parameters.first)
    if parameters.between:
        between = spec.weights["between"]
        value = dequantise(quantise(value, between, parameters.between), between)
    if parameters.addend is Addend.BIAS:
        value = value + spec.weights["added"]
    elif parameters.addend is Addend.RESIDUAL:
        other = dequantise(x[-1], spec.weights["residual"])
        value = value + (other.transpose(0, 2, 3, 1) if parameters.window else other)
    value = apply_activation(np.asarray(value, np.float32), parameters.last)
    if "output" in spec.weights:
        value = quantise(value, spec.weights["output"], spec.outputs[0].dtype)
    return [value.transpose(0, 3, 1, 2) if parameters.window else value]


def reference_max_pool(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """The greatest value of every window; taps beside the image are the least."""
    least, size = float(np.iinfo(x[0].dtype).min), spec.outputs[0].shape[2:]
    taps = windows(x[0] - least, spec.parameters_as(QuantisedPoolParameters).window, size)
    most = taps.reshape(*taps.shape[:3], -1, x[0].shape[1]).max(3) + least
    return [most.transpose(0, 3, 1, 2).astype(x[0].dtype)]


def reference_mean(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """The mean of each plane, quantised."""
    value = dequantise(x[0].mean((2, 3), keepdims=True, dtype=np.float64), spec.weights["input"])
    return [quantise(value, spec.weights["output"], spec.outputs[0].dtype)]


def reference_pair(spec: LayerSpec, x: list[Array]) -> list[Array]:
    """The sum or the product of two tensors, quantised."""
    parameters = spec.parameters_as(StepPairParameters)
    left, right = (dequantise(each, spec.weights[name]) for each, name in zip(x, ("left", "right"), strict=True))
    value = left + right if parameters.operator == "add" else left * right
    value = apply_activation(value.astype(np.float32), parameters.activation)
    return [quantise(value, spec.weights["output"], spec.outputs[0].dtype)]


def reference_dynamic(x: Array) -> list[Array]:
    """Steps of the tensor's own range, which takes zero in; the scale and the zero point."""
    low, high = min(float(x.min(initial=0)), 0.0), max(float(x.max(initial=0)), 0.0)
    scale = np.float32(high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.clip(np.rint(np.float32(-low) / scale), 0, 255)
    steps = quantise(x, np.array([scale, zero]), "uint8")
    return [steps, np.array([scale], np.float32), np.array([zero], np.uint8)]


def quantise(value: Array, quantum: Array, dtype: str) -> Array:
    """Quantise as QuantizeLinear does. quantum: scale and zero point."""
    info = np.iinfo(dtype)
    steps = np.rint(value.astype(np.float64) / quantum[0]) + quantum[1]
    return np.asarray(np.clip(steps, info.min, info.max), dtype)


def dequantise(value: Array, quantum: Array) -> Array:
    return np.asarray((value.astype(np.float64) - quantum[1]) * quantum[0])


def windows(x: Array, window: Window, size: tuple[int, ...]) -> Array:
    """What a convolution of (N, C, H, W) reads for each output: (N, rows, columns, taps x channels)."""
    (kh, kw), (sh, sw), (dh, dw), (top, left, bottom, right) = (
        window.kernel,
        window.strides,
        window.dilations,
        window.pads,
    )
    padded = np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)])
    taps = [
        padded[:, :, u * dh : u * dh + (size[0] - 1) * sh + 1 : sh, v * dw : v * dw + (size[1] - 1) * sw + 1 : sw]
        for u in range(kh)
        for v in range(kw)
    ]
    return np.stack(taps, 1).transpose(0, 3, 4, 1, 2).reshape(len(x), *size, -1)


def steps_allowed(spec: LayerSpec) -> int:
    """How many steps of its output a layer may differ by: one, and what one step before its addend makes."""
    if "between" not in spec.weights or "output" not in spec.weights:
        return 1
    return 1 + ceil(float(spec.weights["between"][0]) / float(spec.weights["output"][0]))


def quantised_tolerance(layers: Iterable[LayerSpec]) -> float:
    """The largest error of a model over its largest output that steps may add up to; 0 where no layer rounds to them.

    A value near the middle of two steps may become either one, and layers behind it multiply that.
    """
    return 0.1 if any(spec.op in QUANTISED_REFERENCES or rounds_floats(spec) for spec in layers) else 0.0


def rounds_floats(spec: LayerSpec) -> bool:
    """Whether a stitched layer rounds floats on its way, so that a value may jump where it is next to a middle."""
    parameters = spec.parameters
    return isinstance(parameters, StitchedParameters) and "round" in parameters.kinds.replace("|", "+").split("+")


def without_jumps(found: Array, expected: Array) -> Array:
    """What was found, but for the few values that jumped to the next step: they are as expected.

    A kernel rounds in single precision what the reference rounds in double. Values jump that lie within a rounding
    error of the middle of two steps: a few in a million, at each rounding, and their row if it is summed. Where steps
    are rounded to other steps, many lie there (`within_choices`).

    >>> wanted = np.zeros(10_000)
    >>> [float(without_jumps(wanted + (np.arange(10_000) < jumps), wanted).max()) for jumps in (4, 40)]
    [0.0, 1.0]
    """
    with np.errstate(invalid="ignore"):
        error = np.abs(found.astype(np.float64) - expected).reshape(-1)
    error[~np.isfinite(error)] = -1.0  # infinities and NaN do not jump
    count = min(ceil(JUMPS * error.size), error.size)
    kept = found.reshape(-1).copy()
    if count:
        jumped = np.argpartition(error, error.size - count)[error.size - count :]
        kept[jumped] = expected.reshape(-1)[jumped]
    return kept.reshape(found.shape)


def within_choices(found: Array, expected: Array, choices: Sequence[Array], margin: float) -> Array:
    """What was found, where it lies between what the choices of a rounding give: there it is as expected.

    A step that is scaled and rounded again, as behind a LeakyRelu, is in the middle of two steps for one in so many
    values, whatever the inputs are.

    >>> within_choices(np.array([1.0, 2.0]), np.zeros(2), [np.zeros(2), np.ones(2)], margin=1e-3).tolist()
    [0.0, 2.0]
    """
    low, high = (extreme([expected, *choices], axis=0) for extreme in (np.minimum.reduce, np.maximum.reduce))
    return np.where((found >= low - margin) & (found <= high + margin), expected, found)


# By the operation of a layer.
QUANTISED_REFERENCES: Mapping[str, Callable[[LayerSpec, list[Array]], list[Array]]] = {
    "max_pool_int8": reference_max_pool,
    "quantise": lambda spec, x: [quantise(x[0], spec.weights["output"], spec.outputs[0].dtype)],
    "dequantise": lambda spec, x: [dequantise(x[0], spec.weights["input"])],
    "dynamic_quantise": lambda spec, x: reference_dynamic(x[0]),
    "reorder": lambda spec, x: list(x),
    "table_int8": lambda spec, x: [spec.weights["table"][x[0].view(np.uint8)]],
    "concat_int8": lambda spec, x: [np.concatenate(x, axis=1)],
    "pair_int8": reference_pair,
    "mean_int8": reference_mean,
    **dict.fromkeys(("matmul_int8", "conv2d_int8", "depthwise_int8"), reference_product),
}
