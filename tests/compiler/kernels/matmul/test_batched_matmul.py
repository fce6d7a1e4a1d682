"""Products of computed matrices equal numpy's, wherever rows, columns and depth end, on every unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx_nets import normal
from run_kernels import OLDER_CPUS, compile_ahead, require_features, run_and_compare, run_kernel

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters
from veltair.machine.isa import cpu_features

Side = tuple[tuple[int, ...], tuple[int, ...]]  # shape in memory, order


def product(
    left: Side,
    right: Side,
    output: tuple[int, ...],
    dtypes: tuple[str, str, str] = ("float32",) * 3,
    max_batch: int = 1,
) -> LayerSpec:
    """A product of operands as they lie in memory, with their orders."""
    a, b, y = (Activation(*t) for t in zip("aby", dtypes, (left[0], right[0], output), strict=True))
    op = "batched_matmul_bf16" if max_batch > 1 or "uint16" in dtypes else "batched_matmul"
    parameters = BatchedMatmulParameters(left[1], right[1], "", 0.25, "none")
    return LayerSpec("product", op, (a, b), (y,), {"bias": normal(output[-1])}, 0, max_batch, parameters)


def values_of(spec: LayerSpec, batch: int = 1) -> list[NDArray[np.float32]]:
    return [normal(*(-d * batch if d < 0 else d for d in tensor.shape)) for tensor in spec.inputs]


@pytest.mark.parametrize("mcpu", ["", *OLDER_CPUS])
def test_every_point_on_every_instruction_set(mcpu: str) -> None:
    require_features(OLDER_CPUS.get(mcpu, frozenset()), mcpu)
    spec = product(((2, 23, 37), (0, 1, 2)), ((2, 71, 37), (0, 2, 1)), (2, 23, 71))
    points = SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, frozenset({"avx2", "avx512"})))
    assert len(points) > 3
    for point in compile_ahead(spec, points[:: 3 if mcpu else 2], mcpu):
        error, _ = run_and_compare(spec, point, values_of(spec), mcpu=mcpu)
        assert error < 1e-5, point


PLAIN, SWAPPED = (0, 1, 2), (0, 2, 1)
UNITS = pytest.mark.parametrize(("unit", "mcpu"), [("amx", ""), ("dots", "cooperlake")])


@pytest.mark.sweep(3)
@pytest.mark.parametrize("dtypes", [("float32",) * 3, ("uint16", "float32", "float32"), ("uint16",) * 3])
@pytest.mark.parametrize(
    ("left", "right", "output"),
    [
        pytest.param(((-1, 9, 32), PLAIN), ((-1, 9, 32), SWAPPED), (-1, 9, 9), id="one tile"),
        pytest.param(((-1, 45, 64), PLAIN), ((-1, 70, 64), SWAPPED), (-1, 45, 70), id="rows as they lie"),
        pytest.param(((-2, 37, 17), SWAPPED), ((-2, 37, 33), PLAIN), (-2, 17, 33), id="both turned, odd reduction"),
        pytest.param(((-1, 50, 7), SWAPPED), ((-1, 50, 100), PLAIN), (-1, 7, 100), id="few rows, turned"),
        pytest.param(((-1, 40, 3, 20), (0, 2, 1, 3)), ((-1, 61, 3, 20), (0, 2, 3, 1)), (-1, 3, 40, 61), id="heads"),
        pytest.param(((1, 5), (0, 1)), ((-3, 19, 5), SWAPPED), (-3, 1, 19), id="one row, broadcast"),
        pytest.param(((-7, 48), (0, 1)), ((21, 48), (1, 0)), (-7, 21), id="rows of the batch"),
    ],
)
@UNITS
def test_blocks_in_bfloat16(
    unit: str, mcpu: str, left: Any, right: Any, output: tuple[int, ...], dtypes: tuple[str, str, str]
) -> None:
    """fp32 and bfloat16 sides, in every combination with few or no rows, columns and products behind the last tile."""
    require_features(OLDER_CPUS.get(mcpu, frozenset({"amx_bf16"})), f"{unit} on bfloat16")
    spec = product(left, right, output, dtypes, max_batch=4)
    points = SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, cpu_features()))
    blocks = [point for point in points if point.get("unit") == unit]
    assert blocks and len(blocks) < len(points)
    for batch, point in ((1, blocks[0]), (3, blocks[-1])):
        error, _ = run_and_compare(spec, point, values_of(spec, batch), batch, mcpu)
        assert error < 1e-2, point


@UNITS
def test_what_is_no_number_stays_in_its_own_row(unit: str, mcpu: str) -> None:
    """Nothing behind the end of a row takes part in a sum."""
    require_features(OLDER_CPUS.get(mcpu, frozenset({"amx_bf16"})), f"{unit} on bfloat16")
    spec = product(((2, 20, 33), PLAIN), ((2, 33, 18), PLAIN), (2, 20, 18), max_batch=4)
    a, b = values_of(spec)
    a[0, 3], b[1, :, 5] = np.inf, np.nan
    (found,) = run_kernel(spec, SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, cpu_features()))[0], [a, b], 1, mcpu)
    bad = ~np.isfinite(found)
    assert bad[0, 3].all() and bad[1, :, 5].all() and bad.sum() == 18 + 20
