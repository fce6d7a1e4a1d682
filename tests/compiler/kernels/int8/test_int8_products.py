"""Products of 8-bit integers equal exact sums, rounded once, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from int8_products import CASES, Parameters, agrees, product
from run_kernels import OLDER_CPUS, run_kernel

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.kernels.int8.products import pack_quads
from veltair.compiler.references.layer_reference import reference_outputs
from veltair.machine.isa import cpu_features

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


@pytest.mark.parametrize("activation", ["clip:30.0:40.0", "clip:-9.0:-8.0", "clip:0.0:3.0"])
def test_bounds_of_an_activation_that_lie_beside_those_of_the_rounding(activation: str) -> None:
    """Steps of 0.04 around 60 reach from -2.4 to 7.8: what lies beyond saturates."""
    spec = product((-7, 66), (-7, 130), Parameters(activation))
    points = SPACES[spec.op].points(spec, cpu_features())
    for point in (points[0], points[-1]):
        x = np.random.default_rng(0).integers(0, 256, (7, 66), np.uint8)
        (found,) = run_kernel(spec, point, [x], 1)
        expected = reference_outputs(spec, [x], 1)
        assert expected is not None
        assert np.abs(found.astype(int) - expected[0]).max() <= 1


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
