"""Rows of a table over and over, of every type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nets import Net, normal, run
from run_kernels import run_kernel

from veltair.compiler.graph.layer_spec import Activation, LayerSpec


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8"])
@pytest.mark.parametrize("shape", [(-3, 5), (-1, 1), (4, 7)])
def test_rows_repeat(dtype: str, shape: tuple[int, ...]) -> None:
    table = np.random.default_rng(0).integers(0, 2, (6 if shape[0] < -1 else 2, shape[1])).astype(dtype)
    y = Activation("y", dtype, shape)
    spec = LayerSpec("y", "constant_rows", (), (y,), {"table": table}, 0, max_batch=5)
    (found,) = run_kernel(spec, {}, [], batch=5)
    np.testing.assert_array_equal(found, np.resize(table, y.at(5)))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_class_token_in_front_of_patches(tmp_path: Path, batch: int) -> None:
    net = Net(x=["n", 4, 32])
    n = net("Gather", net("Shape", "x"), np.array([0]))
    row = normal(1, 1, 32)
    token = net("Expand", row, net("Concat", n, np.array([1, 32]), axis=0))
    rows = net("Concat", token, "x", axis=1)
    y = net("Reshape", net("Relu", rows), np.array([0, -1]))
    path = net.save(tmp_path / "net.onnx", y, token)
    feeds: dict[str, Any] = {"x": normal(batch, 4, 32)}
    outputs, operators = run(path, feeds, "fp32", batch)
    row = row.repeat(batch, 0)
    np.testing.assert_array_equal(outputs[1], row)
    np.testing.assert_array_equal(outputs[0], np.maximum(np.concatenate([row, feeds["x"]], 1), 0).reshape(batch, -1))
    assert "constant_rows" in operators
