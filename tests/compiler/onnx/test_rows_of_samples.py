"""Outputs that have several rows for each sample, as scikit-learn's regressors of several targets have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run

from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

TARGETS = 3


def flattened(path: Path) -> Path:
    """skl2onnx's: the targets of a sample in rows of their own."""
    net = Net(x=["n", 5])
    return net.save(path, net("Reshape", net("MatMul", "x", normal(5, TARGETS)), np.array([-1, 1])))


def stacked(path: Path) -> Path:
    """The rows of all samples, then those of all samples again: no sample's lie side by side."""
    net = Net(x=["n", 5])
    products = [net("MatMul", "x", normal(5, TARGETS)) for _ in range(2)]
    return net.save(path, net("Concat", *products, axis=0))


@pytest.mark.parametrize(("build", "mergeable"), [(flattened, True), (stacked, False)])
def test_queries_share_a_batch_where_rows_of_a_sample_lie_side_by_side(
    tmp_path: Path, build: Callable[[Path], Path], mergeable: bool
) -> None:
    path = build(tmp_path / "net.onnx")
    feeds = {"x": normal(4, 5)}
    [found], _ = run(path, feeds, "fp32", batch=4)
    [expected] = ort.InferenceSession(str(path)).run(None, feeds)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert load_model(path, 4).mergeable is mergeable


def test_another_dimension_that_grows_with_the_batch_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    net = Net(x=["n", 5])
    path = net.save(tmp_path / "net.onnx", net("Transpose", "x", perm=[1, 0]))
    assert load_model(path, 4).sized
    with pytest.raises(ModelError, match="in its first dimension alone"):
        load_model(path, 4, fallback=False)
