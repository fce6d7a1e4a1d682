"""Products of computed matrices become one layer, equal to ONNX Runtime: broadcast batches, transposes, odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower

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


@pytest.mark.sweep(3)
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
