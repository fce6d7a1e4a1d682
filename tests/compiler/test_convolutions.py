"""Every algorithm of a convolution gives what ONNX Runtime gives where its tiles do not fit the image."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernels import LESSER, ahead, need, untouched_halo, worst_error

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.shared_library import machine_code
from veltair.machine.isa import ISAS, cpu_features

Size = tuple[int, int]
random = np.random.default_rng(11)
TOLERANCE = {"direct": 1e-5, "winograd": 1e-4}


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def convolution(
    channels: Size, size: Size, kernel: int, *, stride: int = 1, dilation: int = 1,
    pads: tuple[int, ...] = (), batch: int = 1, residual: bool = False,
) -> LayerSpec:  # fmt: skip
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


def check(spec: LayerSpec, every: int, mcpu: str = "") -> set[str]:
    """Runs each `every`-th point, and the algorithms tried."""
    points = SPACES[spec.op].points(spec, LESSER.get(mcpu, cpu_features()))
    assert len({tuple(p.items()) for p in points}) == len(points) <= 64
    values = [normal(*t.shape) for t in spec.inputs]
    for point in ahead(spec, points[::every], mcpu):
        error, (output,) = worst_error(spec, point, values, mcpu=mcpu)
        assert error < TOLERANCE[str(point["algorithm"])], point
        assert untouched_halo(spec.outputs[0], output), point
    return {str(point["algorithm"]) for point in points[::every]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(convolution((40, 70), (9, 13), 3, batch=3, residual=True), id="odd blocks, batch 3"),
        pytest.param(convolution((33, 64), (7, 7), 3), id="tiles across row ends"),
        pytest.param(convolution((20, 64), (14, 14), 3, residual=True), id="several chunks of tiles"),
        pytest.param(convolution((16, 170), (9, 10), 3, residual=True), id="a last group that is not full"),
        pytest.param(convolution((16, 32), (6, 30), 3, pads=(0, 2, 1, 0)), id="asymmetric pads"),
    ],
)
def test_winograd_and_direct_agree_with_onnx_runtime(spec: LayerSpec) -> None:
    assert check(spec, 3) == {"direct", "winograd"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(convolution((48, 96), (7, 7), 1, residual=True), id="pointwise"),
        pytest.param(convolution((3, 40), (23, 21), 7, stride=2), id="image"),
        pytest.param(convolution((16, 48), (19, 19), 3, stride=2, pads=(0, 0, 1, 1)), id="stride"),
        pytest.param(convolution((20, 20), (1, 1), 1, batch=3), id="one output"),
        pytest.param(convolution((20, 20), (5, 3), 3, dilation=2, pads=(2, 2, 2, 2)), id="dilation"),
        pytest.param(convolution((24, 24), (10, 10), 5), id="5x5"),
    ],
)
def test_direct_where_winograd_cannot(spec: LayerSpec) -> None:
    assert check(spec, 2) == {"direct"}


@pytest.mark.slow
@pytest.mark.parametrize("mcpu", sorted(LESSER))
def test_fewer_registers(mcpu: str) -> None:
    need(LESSER[mcpu], f"code for {mcpu}")
    assert check(convolution((33, 64), (7, 9), 3, residual=True), 3, mcpu) == {"direct", "winograd"}


def depthwise(channels: int, size: Size, kernel: int, dtype: str, **more: Any) -> LayerSpec:
    spec = convolution((channels, channels), size, kernel, residual=True, **more)
    block = 16 if dtype == "float32" else 32
    tensors = [replace(t, dtype=dtype, block=block) for t in (*spec.inputs, *spec.outputs)]
    weights = {"weight": normal(channels, 1, kernel, kernel), "bias": normal(channels)}
    op = "depthwise_conv2d"
    return replace(spec, op=op, inputs=tuple(tensors[:-1]), outputs=(tensors[-1],), weights=weights)


@pytest.mark.parametrize(
    "geometry",
    [
        pytest.param({"size": (9, 11), "kernel": 3}, id="3x3"),
        pytest.param({"size": (13, 9), "kernel": 3, "stride": 2, "pads": (0, 1, 1, 0)}, id="stride"),
        pytest.param({"size": (9, 17), "kernel": 5, "batch": 2}, id="5x5"),
        pytest.param({"size": (11, 8), "kernel": 3, "dilation": 2, "pads": (2, 2, 2, 2)}, id="dilation"),
        pytest.param({"size": (2, 1), "kernel": 3}, id="one column"),
    ],
)
@pytest.mark.parametrize(("dtype", "mcpu"), [("float32", ""), ("float32", "haswell"), ("uint16", "")])
def test_depthwise_at_every_point(dtype: str, mcpu: str, geometry: dict[str, Any]) -> None:
    need(frozenset({"avx512_bf16"} if dtype == "uint16" else {"avx2"}), f"{dtype} in vectors")
    spec = depthwise(40, dtype=dtype, **geometry)
    values = [normal(*t.shape) for t in spec.inputs]
    points = SPACES[spec.op].points(spec, LESSER.get(mcpu, cpu_features()))
    for point in ahead(spec, (*points[:2], *points[2::4]), mcpu):
        error, (output,) = worst_error(spec, point, values, mcpu=mcpu)
        assert error < (1e-6 if dtype == "float32" else 1e-2), point
        assert untouched_halo(spec.outputs[0], output), point


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(convolution((32, 96), (14, 14), 1), id="pointwise"),
        pytest.param(convolution((16, 64), (15, 15), 3, stride=2), id="direct"),
        pytest.param(convolution((32, 64), (14, 14), 3), id="winograd"),
    ],
)
def test_default_tiles_for_avx2_fit_its_registers(spec: LayerSpec) -> None:
    """No product reads a vector that was spilled to the stack."""
    narrow = LESSER["haswell"]
    space = SPACES[spec.op]
    kernel = space.build(spec, space.points(spec, narrow)[0], narrow)
    code = machine_code(kernel.function, "main", {"kind": "llvm", "mcpu": "haswell"})
    products = re.findall(r"vfn?m[a-z]+\d+ps\s.*", code.mod.inspect_source("asm"))
    assert len(products) >= 12
    assert not [line for line in products if "%rsp" in line or "%rbp" in line or "zmm" in line]


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


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(bare(tiles((40, 70), (7, 9), 1, residual=True), "relu"), id="pointwise"),
        pytest.param(tiles((70, 40), (9, 13), 3, residual=True, batch=2), id="odd blocks, half a block of outputs"),
        pytest.param(tiles((33, 64), (14, 14), 3, stride=2), id="stride"),
        pytest.param(tiles((3, 40), (23, 37), 7, stride=2), id="image"),
        pytest.param(tiles((1, 16), (9, 11), 3, dilation=2, pads=(2, 2, 2, 2)), id="dilated image of one channel"),
        pytest.param(tiles((24, 24), (10, 10), 5), id="5x5"),
        pytest.param(tiles((160, 40), (1, 1), 1, batch=3), id="one output"),
        pytest.param(pooled(tiles((3, 16), (37, 70), 3), 1, "leaky:0.1"), id="pooled image"),
        pytest.param(pooled(tiles((40, 70), (9, 33), 3, batch=2), 0, "relu"), id="pooled, odd rest left out"),
    ],
)
def test_dot_products_agree_with_onnx_runtime(spec: LayerSpec) -> None:
    need(LESSER["cooperlake"], "dot products of bfloat16")
    values = [normal(*t.shape) for t in spec.inputs]
    points = SPACES[spec.op].points(spec, LESSER["cooperlake"])
    for point in ahead(spec, (points[0], *points[1::5]), "cooperlake"):
        error, (output,) = worst_error(spec, point, values, mcpu="cooperlake")
        assert error < 1e-2, point
        assert untouched_halo(spec.outputs[0], output), point


def test_code_without_tiles_has_none() -> None:
    """Dot products by the instruction, no sum of them in memory, and nothing that asks for AMX."""
    spec, lesser = tiles((64, 64), (14, 14), 3), ISAS["avx512_bf16"]
    space = SPACES[spec.op]
    kernel = space.build(spec, space.points(spec, lesser)[0], lesser)
    target = {"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512bf16"]}
    code = machine_code(kernel.function, "main", target).mod.inspect_source("asm")
    products = re.findall(r"vdpbf16ps\s.*", code)
    assert len(products) >= 16
    assert not [line for line in products if "%rsp" in line or "%rbp" in line]
    assert not re.search(r"\b(tile\w+|ldtilecfg|tdp\w+)\b|veltair_dot", code)


@pytest.mark.slow
@pytest.mark.skipif("amx_bf16" not in cpu_features(), reason="this CPU has no AMX bfloat16 tiles")
@pytest.mark.parametrize(
    ("modes", "spec"),
    [
        pytest.param("flat", bare(tiles((40, 70), (7, 9), 1, residual=True), "relu"), id="the last pair moves up"),
        pytest.param(
            "flat", bare(tiles((64, 33), (5, 6), 1, residual=True), "gated-sigmoid"), id="fewer outputs than a pair"
        ),
        pytest.param("flat row", tiles((48, 40), (9, 11), 1, residual=True), id="one or two steps, halos"),
        pytest.param("flat row", tiles((33, 64), (14, 14), 3, residual=True, batch=2), id="residual of another halo"),
        pytest.param("flat tall", tiles((256, 40), (7, 7), 3, residual=True), id="many steps"),
        pytest.param("row", tiles((70, 40), (9, 27), 3, stride=2), id="stride"),
        pytest.param("dense flat row tall", tiles((40, 70), (13, 13), 3, stride=2, batch=2), id="copied inputs"),
        pytest.param("dense flat row", tiles((64, 96), (14, 14), 1, stride=2, batch=2), id="pointwise with stride"),
        pytest.param("dense flat", bare(tiles((64, 96), (7, 9), 1, stride=2)), id="fewer outputs than a pair, copied"),
        pytest.param("row", tiles((3, 40), (23, 37), 7, stride=2), id="image"),
        pytest.param("flat row", tiles((160, 40), (1, 1), 1, batch=3), id="one output"),
        pytest.param("flat row", tiles((64, 64), (19, 19), 3, dilation=6, pads=(6, 6, 6, 6)), id="dilation"),
        pytest.param("flat", tiles((640, 40), (5, 6), 1, residual=True, batch=2), id="uneven stretches"),
        pytest.param("flat row", tiles((40, 16), (9, 33), 3, residual=True, batch=2), id="half a block of outputs"),
        pytest.param("pairs", pooled(tiles((3, 16), (37, 70), 3), 1, "leaky:0.1"), id="pooled image"),
        pytest.param("pairs", pooled(tiles((40, 70), (9, 33), 3, batch=2), 0, "relu"), id="pooled, odd rest left out"),
        pytest.param("pairs", pooled(tiles((160, 33), (9, 35), 3), 1, "clip:-1.0:1.5"), id="pooled, odd rest alone"),
    ],
)
def test_tiles_in_every_mode(modes: str, spec: LayerSpec) -> None:
    values = [normal(*t.shape) for t in spec.inputs]
    tried: dict[tuple[str, bool], list[Point]] = {}
    for point in SPACES[spec.op].points(spec, cpu_features()):
        tried.setdefault((str(point["mode"]), "stretch" in point), []).append(point)
    assert set(modes.split()) == {mode for mode, _ in tried}
    for point in ahead(spec, [p for mode in tried.values() for p in mode[:: max(len(mode) - 1, 1)]]):
        error, (output,) = worst_error(spec, point, values)
        assert error < 1e-2, point
        assert untouched_halo(spec.outputs[0], output), point
