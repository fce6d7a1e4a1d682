"""Depthwise convolutions in fp32 and bfloat16 against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import pytest
from conv_layers import depthwise, normal
from run_kernels import OLDER_CPUS, compile_ahead, halo_is_zero, require_features, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.machine.isa import cpu_features


@pytest.mark.sweep(2)
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
    require_features(frozenset({"avx512_bf16"} if dtype == "uint16" else {"avx2"}), f"{dtype} in vectors")
    spec = depthwise(40, dtype=dtype, **geometry)
    values = [normal(*t.shape) for t in spec.inputs]
    points = SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, cpu_features()))
    for point in compile_ahead(spec, (*points[:2], *points[2::4]), mcpu):
        error, (output,) = run_and_compare(spec, point, values, mcpu=mcpu)
        assert error < (1e-6 if dtype == "float32" else 1e-2), point
        assert halo_is_zero(spec.outputs[0], output), point
