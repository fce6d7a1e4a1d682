"""Every algorithm of a convolution gives what ONNX Runtime gives where its tiles do not fit the image."""

from __future__ import annotations

import re

import pytest
from conv_layers import convolution, normal, windowed
from run_kernels import OLDER_CPUS, compile_ahead, halo_is_zero, require_features, run_and_compare, some_of

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import cpu_features

TOLERANCE = {"direct": 1e-5, "winograd": 1e-4}


def check(spec: LayerSpec, every: int, mcpu: str = "") -> set[str]:
    """Runs each `every`-th point, in whole sweeps all; the algorithms tried."""
    points = SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, cpu_features()))
    assert len({tuple(p.items()) for p in points}) == len(points) <= 64
    values, tried = [normal(*t.shape) for t in spec.inputs], some_of(points, every)
    for point in compile_ahead(spec, tried, mcpu):
        error, (output,) = run_and_compare(spec, point, values, mcpu=mcpu)
        assert error < TOLERANCE[str(point["algorithm"])], point
        assert halo_is_zero(spec.outputs[0], output), point
    return {str(point["algorithm"]) for point in tried}


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(convolution((40, 70), (9, 13), 3, batch=3, residual=True), id="odd blocks, batch 3"),
        pytest.param(convolution((33, 64), (7, 7), 3), id="tiles across row ends"),
        pytest.param(convolution((20, 64), (14, 14), 3, residual=True), id="several chunks of tiles"),
        pytest.param(convolution((16, 170), (9, 10), 3, residual=True), id="a last group that is not full"),
        pytest.param(convolution((16, 32), (6, 30), 3, pads=(0, 2, 1, 0)), id="asymmetric pads"),
        pytest.param(convolution((20, 32), (15, 13), 3, dilation=2, pads=(2,) * 4, residual=True), id="every second"),
        pytest.param(convolution((32, 64), (17, 16), 3, dilation=6, pads=(6,) * 4), id="taps far apart"),
        pytest.param(convolution((20, 32), (9, 14), 3, dilation=3, pads=(2, 5, 4, 1), batch=2), id="and not centred"),
    ],
)
def test_winograd_and_direct_agree_with_onnx_runtime(spec: LayerSpec) -> None:
    assert check(spec, 5) == {"direct", "winograd"}


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
        pytest.param(convolution((20, 40), (16, 33), 5, dilation=9, pads=(18,) * 4, residual=True), id="wide dilation"),
        pytest.param(convolution((20, 20), (31, 9), 3, dilation=7, stride=2, pads=(7, 9, 7, 9)), id="and a stride"),
    ],
)
def test_direct_where_winograd_cannot(spec: LayerSpec) -> None:
    assert check(spec, 4) == {"direct"}


PHASES = ((0, 0, 2, 2), (0, 1, 2, 2), (1, 0, 2, 2), (1, 1, 2, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(windowed(convolution((20, 128), (7, 9), 3), *PHASES), id="phases"),
        pytest.param(windowed(convolution((16, 192), (5, 14), 3, residual=True), *PHASES), id="three blocks each"),
        pytest.param(windowed(convolution((16, 96), (9, 10), 3), (1, 1, 1, 1), (0, 1, 3, 2)), id="unequal"),
        pytest.param(
            windowed(convolution((32, 64), (9, 9), 3, dilation=7, pads=(7,) * 4), (0, 0, 2, 3), (2, 1, 1, 2)),
            id="taps far apart",
        ),
    ],
)
def test_channels_that_read_a_window_of_the_taps(spec: LayerSpec) -> None:
    assert check(spec, 3) == {"direct", "winograd"}


@pytest.mark.slow
@pytest.mark.parametrize("mcpu", sorted(OLDER_CPUS))
def test_fewer_registers(mcpu: str) -> None:
    require_features(OLDER_CPUS[mcpu], f"code for {mcpu}")
    assert check(convolution((33, 64), (7, 9), 3, residual=True), 3, mcpu) == {"direct", "winograd"}


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
    narrow = OLDER_CPUS["haswell"]
    space = SPACES[spec.op]
    kernel = space.build(spec, space.points(spec, narrow)[0], narrow)
    code = compile_function(kernel.function, "main", {"kind": "llvm", "mcpu": "haswell"})
    products = re.findall(r"vfn?m[a-z]+\d+ps\s.*", code.mod.inspect_source("asm"))
    assert len(products) >= 12
    assert not [line for line in products if "%rsp" in line or "%rbp" in line or "zmm" in line]
