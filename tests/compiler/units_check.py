"""Helpers of the tests: the first and the last point of a space, in fp32 and bfloat16, on this and on older CPUs."""

from __future__ import annotations

import numpy as np
import pytest
from run_kernels import OLDER_CPUS, compile_ahead, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.machine.isa import cpu_features

random = np.random.default_rng(11)
HERE = cpu_features()
needs_amx = pytest.mark.skipif("amx_bf16" not in HERE, reason="this CPU has no AMX bfloat16 tiles")
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in HERE, reason="this CPU does not round to bfloat16")
UNITS = [  # type, CPU that the code is for
    pytest.param("float32", "", id="fp32"),
    pytest.param("float32", "haswell", id="avx2"),
    pytest.param("uint16", "", id="amx", marks=needs_amx),
    pytest.param("uint16", "cooperlake", id="avx512-bf16", marks=needs_bf16),
]
TOLERANCE = {"float32": 2e-6, "uint16": 1e-2}


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def at(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    return tuple(-d * batch if d < 0 else d for d in shape)


def check(
    spec: LayerSpec,
    mcpu: str,
    batch: int = 1,
    values: list[np.ndarray] | None = None,
    ends: bool = True,
    tolerance: float = 0,
) -> None:
    """Of a space the first and the last point, or the first alone."""
    points = SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, HERE))
    values = values or [normal(*at(tensor.shape, batch)) for tensor in spec.inputs]
    for point in compile_ahead(spec, (points[0], points[-1]) if ends else points[:1], mcpu):
        error, _ = run_and_compare(spec, point, values, batch, mcpu)
        assert error < max(tolerance, TOLERANCE[spec.outputs[0].dtype]), (spec.workload, point)
