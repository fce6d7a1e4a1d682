"""Layers of convolutions for the tests of their kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.parameters.vision import Conv2dParameters

Size = tuple[int, int]


random = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def convolution(
    channels: Size,
    size: Size,
    kernel: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    pads: tuple[int, ...] = (),
    batch: int = 1,
    residual: bool = False,
) -> LayerSpec:
    """A convolution in fp32 of (input, output) channels, between tensors with different halos."""
    ic, oc = channels
    pads = pads or (kernel // 2,) * 4
    reach = (kernel - 1) * dilation + 1
    oh, ow = ((n + pads[i] + pads[i + 2] - reach) // stride + 1 for i, n in enumerate(size))
    x = Activation("x", "float32", (batch, ic, *size), min(ic, 16), Halo(*pads))
    y = Activation("y", "float32", (batch, oc, oh, ow), 16, Halo(1, 0, 2, 1))
    r = Activation("r", "float32", y.shape, 16, Halo(0, 1, 0, 2))
    activation = "relu" if residual else "none"
    parameters = Conv2dParameters((kernel,) * 2, (stride,) * 2, (dilation,) * 2, pads, activation)
    weights = {"weight": normal(oc, ic, kernel, kernel) / np.float32(kernel * ic**0.5), "bias": normal(oc)}
    return LayerSpec("c", "conv2d", (x, r) if residual else (x,), (y,), weights, 0, parameters=parameters)


def windowed(spec: LayerSpec, *windows: tuple[int, int, int, int]) -> LayerSpec:
    """The same with zeros outside a window of taps for each share of the output channels."""
    weight = np.zeros_like(spec.weights["weight"])
    parts = zip(np.split(weight, len(windows)), np.split(spec.weights["weight"], len(windows)), windows, strict=True)
    for part, given, (row, column, rows, columns) in parts:
        at = (..., slice(row, row + rows), slice(column, column + columns))
        part[at] = given[at]
    parameters = replace(spec.parameters_as(Conv2dParameters), windows=windows)
    return replace(spec, weights={**spec.weights, "weight": weight}, parameters=parameters)


def depthwise(channels: int, size: Size, kernel: int, dtype: str, **more: Any) -> LayerSpec:
    spec = convolution((channels, channels), size, kernel, residual=True, **more)
    block = 16 if dtype == "float32" else 32
    tensors = [replace(t, dtype=dtype, block=block) for t in (*spec.inputs, *spec.outputs)]
    weights = {"weight": normal(channels, 1, kernel, kernel), "bias": normal(channels)}
    op = "depthwise_conv2d"
    return replace(spec, op=op, inputs=tuple(tensors[:-1]), outputs=(tensors[-1],), weights=weights)


def tiles(channels: Size, size: Size, kernel: int, **more: Any) -> LayerSpec:
    """A convolution in bfloat16 on AMX."""
    spec = convolution(channels, size, kernel, **more)
    folds = channels[0] <= 4
    block = channels[0] if folds else 32
    right = 32 // channels[0] + 1 if folds else 0
    halo = spec.inputs[0].halo
    x = replace(spec.inputs[0], dtype="uint16", block=block, halo=replace(halo, right=halo.right + right))
    others = [replace(t, dtype="uint16", block=32) for t in (*spec.inputs[1:], *spec.outputs)]
    return replace(spec, op="conv2d_bf16", inputs=(x, *others[:-1]), outputs=(others[-1],))


def bare(spec: LayerSpec, activation: str = "none") -> LayerSpec:
    """The same between tensors without halos, as between pointwise convolutions."""
    tensors = [replace(t, halo=Halo()) for t in (*spec.inputs, *spec.outputs)]
    parameters = replace(spec.parameters_as(Conv2dParameters), activation=activation)
    return replace(spec, inputs=tuple(tensors[:-1]), outputs=(tensors[-1],), parameters=parameters)


def pooled(spec: LayerSpec, rest: int, activation: str) -> LayerSpec:
    """The same and the maximum over 2 x 2 neighbours of its outputs; `rest`: also over fewer, where the size is odd."""
    (y,) = spec.outputs
    size = y.shape[2:]
    smaller = replace(y, shape=(*y.shape[:2], *((n + rest) // 2 for n in size)))
    parameters = replace(spec.parameters_as(Conv2dParameters), activation=activation, pooled=size)
    return replace(spec, outputs=(smaller,), parameters=parameters)
