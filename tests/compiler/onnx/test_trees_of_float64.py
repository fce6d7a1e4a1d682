"""Trees of float64, with thresholds of float32 as skl2onnx writes them, compute what ONNX Runtime computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import run as run_layers
from random_trees import drawn_rows, leaves_of, random_branches, weights_of
from tree_models import ML, MODES, ROWS, STUMP, expected, run_trees, saved

DOUBLE, node = TensorProto.DOUBLE, helper.make_node


@pytest.mark.parametrize("mode", MODES[:4])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressors_of_float64(tmp_path: Path, targets: int, mode: str) -> None:
    """What skl2onnx writes for data of numpy's own type: float64 beside thresholds of float32."""
    rng = np.random.default_rng([targets, MODES.index(mode)])
    branches = random_branches(47, rng, (mode,), missing=True)
    if MODES.index(mode) in (1, 2):  # with such a threshold a branch by "less" needs one by "at most" beside it
        branches["nodes_values"] = [max(value, -3.0) for value in branches["nodes_values"]]
    entries = [(tree, number, tree % targets, float(rng.standard_normal())) for tree, number in leaves_of(branches)]
    trees = node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=targets, **branches, **weights_of(entries))
    path, x = saved(tmp_path / "net.onnx", trees, kind=DOUBLE), drawn_rows(31, rng, np.float64)
    np.testing.assert_array_equal(run_trees(path, x)[0], expected(path, x)[0])


@pytest.mark.parametrize("classes", [2, 3])
def test_votes_for_classes_of_float64_are_compared_exactly(tmp_path: Path, classes: int) -> None:
    """Thirds that float32 would round to a tie."""
    rng = np.random.default_rng(classes)
    branches = random_branches(9, rng, MODES[:1], missing=False)
    votes = [float(np.float32(n / 9 / 3)) for n in range(4)]
    given_to = range(classes if classes > 2 else 1)
    entries = [(*leaf, c, votes[int(rng.integers(4))]) for leaf in leaves_of(branches) for c in given_to]
    facts = {"classlabels_int64s": [4, 8, 6][:classes], **branches, **weights_of(entries, "class")}
    trees = node("TreeEnsembleClassifier", ["x"], ["label", "y"], domain=ML, **facts)
    path, x = saved(tmp_path / "net.onnx", trees, kind=DOUBLE), drawn_rows(31, rng, np.float64)
    (labels, scores), (want, wanted) = run_trees(path, x), expected(path, x)
    np.testing.assert_array_equal(labels, want)
    np.testing.assert_allclose(scores, wanted, rtol=1e-6)


def test_float64_that_is_compared_in_several_ways_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    branches = random_branches(9, rng, MODES, missing=False)
    facts = branches | weights_of([(*leaf, 0, 0.25) for leaf in leaves_of(branches)], "class")
    facts |= {"classlabels_int64s": [4, 8]}
    trees = node("TreeEnsembleClassifier", ["x"], ["label", "y"], domain=ML, **facts)
    path, x = saved(tmp_path / "net.onnx", trees, kind=DOUBLE), drawn_rows(31, rng, np.float64)
    found, operators = run_layers(path, {"x": x}, "fp32", batch=31, max_batch=32)
    assert "onnxruntime" in operators and "trees" not in operators
    np.testing.assert_array_equal(found[0], expected(path, x)[0])


def test_thresholds_of_float64_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.array([0.1, 0, 0]))
    stated = {name: value for name, value in STUMP.items() if name not in ("nodes_values", "target_weights")}
    weights = numpy_helper.from_array(np.array([0.1, 0.2]))
    wide = {"nodes_values_as_tensor": tensor, "target_weights_as_tensor": weights}
    trees = node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=1, **stated, **wide)
    path, x = saved(tmp_path / "net.onnx", trees, kind=DOUBLE), drawn_rows(ROWS, np.random.default_rng(9))
    found, operators = run_layers(path, {"x": x.astype(np.float64)}, "fp32", batch=ROWS, max_batch=32)
    assert operators == ["onnxruntime"]
    np.testing.assert_allclose(found[0], expected(path, x.astype(np.float64))[0], rtol=1e-6)
