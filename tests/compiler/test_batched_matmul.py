"""Products of computed matrices equal ONNX Runtime's: broadcast batches, transposes, odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx_nets import Net, normal, run
from run_kernels import OLDER_CPUS, compile_ahead, require_features, run_and_compare, run_kernel

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.machine.isa import cpu_features

SWAP = {2: [1, 0], 3: [0, 2, 1], 4: [0, 1, 3, 2]}


def agree(path: Path, net: Net, output: str, batch: int = 1, max_batch: int = 4) -> list[str]:
    model = net.save(path / "net.onnx", output)
    shapes = {v.name: [d.dim_value or batch for d in v.type.tensor_type.shape.dim] for v in net.inputs}
    feeds = {name: normal(*shape) * 3 for name, shape in shapes.items()}
    found, operators = run(model, feeds, "fp32", batch, max_batch)
    (wanted,) = ort.InferenceSession(str(model)).run(None, feeds)
    assert found[0].shape == wanted.shape
    assert np.abs(found[0] - wanted).max() <= 1e-5 * np.abs(wanted).max()
    return operators


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([7, 33], [33, 45]),
        ([3, 5, 17], [3, 17, 64]),
        ([2, 3, 13, 40], [2, 3, 40, 13]),
        ([4, 1, 6, 8], [5, 8, 31]),  # the batch dimensions of both are broadcast
        ([9, 20], [3, 20, 16]),
        ([2, 3, 1, 12], [2, 1, 12, 50]),  # one row
        ([3, 40, 12], [12, 1]),  # one column, of which all others have their own
        ([3, 100, 1], [3, 1, 100]),  # an outer product
    ],
)
@pytest.mark.parametrize("transposed", ["", "left", "right", "both"])
def test_sides_of_any_shape(tmp_path: Path, left: list[int], right: list[int], transposed: str) -> None:
    def side(name: str, shape: list[int]) -> tuple[list[int], Any]:
        turned = transposed in (name, "both")
        given = [*shape[:-2], shape[-1], shape[-2]] if turned else shape
        return given, (lambda: net("Transpose", name, perm=SWAP[len(shape)])) if turned else lambda: name

    (a, x), (b, y) = side("left", left), side("right", right)
    net = Net(left=a, right=b)
    assert agree(tmp_path, net, net("MatMul", x(), y())) == ["batched_matmul"]


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_of_any_size_and_what_follows_a_product(tmp_path: Path, batch: int) -> None:
    """As attention computes it, of heads that no attention layer takes."""
    net = Net(q=["b", 10, 3, 12], k=["b", 10, 3, 12])
    q, k = (net("Transpose", x, perm=p) for x, p in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1])))
    scores = net("Relu", net("Add", net("Div", net("MatMul", q, k), np.float32(3.5)), normal(10)))
    assert agree(tmp_path, net, scores, batch) == ["batched_matmul"]


def test_rows_that_are_the_batch(tmp_path: Path) -> None:
    net = Net(x=["b", 19], w=[7, 19])
    assert agree(tmp_path, net, net("Gemm", "x", "w", normal(7), transB=1, alpha=0.5, beta=2.0), 3) == [
        "batched_matmul"
    ]


def test_a_constant_side(tmp_path: Path) -> None:
    net = Net(x=[2, 9, 21])
    mixed = net("MatMul", normal(5, 9), "x")
    assert agree(tmp_path, net, net("MatMul", mixed, normal(2, 21, 18))) == ["batched_matmul"] * 2
    net = Net(x=[9, 21])
    assert agree(tmp_path, net, net("Gemm", "x", normal(9, 6), transA=1)) == ["batched_matmul"]


def test_a_sum_along_the_rows_is_no_bias(tmp_path: Path) -> None:
    net = Net(x=[8, 5], y=[5, 8])
    agree(tmp_path, net, net("Add", net("MatMul", "x", "y"), normal(8, 1)))
    net = Net(x=[8, 5])
    agree(tmp_path, net, net("Add", net("MatMul", "x", normal(5, 8)), normal(8, 1)))


def test_what_is_no_product_of_floats_goes_elsewhere(tmp_path: Path) -> None:
    net = Net(x=[4, 6], y=[6])
    model = load_model(net.save(tmp_path / "net.onnx", net("MatMul", "x", "y")), 1)
    assert "batched_matmul" not in [spec.op for spec in lower(model, "fp32").layers]


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
