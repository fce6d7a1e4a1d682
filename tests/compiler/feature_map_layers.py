"""Layers on blocked feature maps, and the comparison of their kernels with the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from run_kernels import OLDER_CPUS, compile_ahead, halo_is_zero, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters import LayerParameters
from veltair.machine.isa import cpu_features

FP32, BF16 = ("float32", 16, 1e-5), ("uint16", 32, 1.5e-2)


needs_bf16 = pytest.mark.skipif(not cpu_features() & {"amx_bf16", "avx512_bf16"}, reason="this CPU has no bfloat16")


PRECISIONS = [pytest.param(FP32, id="fp32"), pytest.param(BF16, id="bf16", marks=needs_bf16)]


Size = tuple[int, int]


random = np.random.default_rng(11)


def layer(
    op: str,
    inputs: tuple[Activation, ...],
    output: Activation,
    parameters: LayerParameters | None = None,
    weights: Mapping[str, NDArray[Any]] | None = None,
) -> LayerSpec:
    return LayerSpec(op, op, inputs, (output,), weights or {}, 0, parameters=parameters or LayerParameters())


def check(spec: LayerSpec, tolerance: float, shift: float = 0.0, mcpu: str = "") -> None:
    """The first and the last point of the space, which differ most."""
    values = [random.standard_normal(t.shape).astype(np.float32) + np.float32(shift) for t in spec.inputs]
    points = SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, cpu_features()))
    for point in compile_ahead(spec, points[:: max(1, len(points) - 1)], mcpu):
        error, (output,) = run_and_compare(spec, point, values, mcpu=mcpu)
        assert error < tolerance, (spec.workload, point)
        if spec.outputs[0].block:
            assert halo_is_zero(spec.outputs[0], output)
