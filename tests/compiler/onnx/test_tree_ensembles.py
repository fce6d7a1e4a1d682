"""Ensembles of decision trees compute what ONNX Runtime computes of them, bit by bit where nothing comes after them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiled_models import Told
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import run as run_layers
from random_trees import drawn_rows, leaves_of, random_branches, weights_of
from tree_models import ML, MODES, ROWS, STUMP, expected, run_trees, saved

from veltair.compiler.onnx.scikit_learn.tree_ensemble import read_trees
from veltair.errors import ModelError

node, INT64 = helper.make_node, TensorProto.INT64


@pytest.mark.parametrize("missing", [False, True], ids=["whole", "missing"])
@pytest.mark.parametrize(
    "modes", [MODES[:1], MODES[1:2], MODES[2:3], MODES[3:4], MODES], ids=lambda m: "-".join(m)[7:13]
)
@pytest.mark.parametrize("targets", [1, 3])
def test_regressors(tmp_path: Path, targets: int, modes: tuple[str, ...], missing: bool) -> None:
    rng = np.random.default_rng([targets, MODES.index(modes[0]), len(modes), missing])
    branches = random_branches(47, rng, modes, missing)
    entries = [(tree, number, tree % targets, float(rng.standard_normal())) for tree, number in leaves_of(branches)]
    base = [0.25, -3.0, 1.5][:targets]
    trees = node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        domain=ML,
        n_targets=targets,
        base_values=base,
        aggregate_function="AVERAGE" if missing else "SUM",
        **branches,
        **weights_of(entries),
    )
    path, x = saved(tmp_path / "net.onnx", trees), drawn_rows(ROWS, rng)
    np.testing.assert_array_equal(run_trees(path, x)[0], expected(path, x)[0])


def test_leaves_of_several_targets(tmp_path: Path) -> None:
    """Some add to all targets, some to none."""
    rng = np.random.default_rng(3)
    branches = random_branches(9, rng, MODES[:2], missing=False)
    entries = [
        (*leaf, t, float(rng.standard_normal())) for leaf in leaves_of(branches) for t in range(4) if rng.random() < 0.7
    ]
    trees = node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=4, **branches, **weights_of(entries))
    path, x = saved(tmp_path / "net.onnx", trees), drawn_rows(ROWS, rng)
    np.testing.assert_array_equal(run_trees(path, x)[0], expected(path, x)[0])


@pytest.mark.parametrize("after", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("base", [[], [0.125]])
@pytest.mark.parametrize("positive", [True, False])
def test_two_classes_by_one_score(tmp_path: Path, positive: bool, base: list[float], after: str) -> None:
    rng = np.random.default_rng(5)
    branches = random_branches(4, rng, MODES[:1], missing=True)
    drawn = rng.random if positive else rng.standard_normal
    entries = [(*leaf, 0, float(drawn()) / 4) for leaf in leaves_of(branches)]
    trees = node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "y"],
        domain=ML,
        classlabels_int64s=[7, -2],
        post_transform=after,
        **({"base_values": base} if base else {}),
        **branches,
        **weights_of(entries, "class"),
    )
    path, x = saved(tmp_path / "net.onnx", trees), drawn_rows(31, rng)
    (labels, scores), (want, wanted) = run_trees(path, x), expected(path, x)
    np.testing.assert_array_equal(labels, want)
    assert len(set(labels.tolist())) == 2
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("after", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("base", [[], [0.5, -0.5, 0.0]])
@pytest.mark.parametrize("boosted", [True, False])
def test_a_score_for_each_class(tmp_path: Path, boosted: bool, base: list[float], after: str) -> None:
    """Of boosted trees each adds to one class, of a forest's to all."""
    rng = np.random.default_rng(6)
    branches = random_branches(24, rng, MODES[:1], missing=False)
    entries = [
        (tree, number, c, float(rng.standard_normal()))
        for tree, number in leaves_of(branches)
        for c in ((tree % 3,) if boosted else range(3))
    ]
    trees = node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "y"],
        domain=ML,
        classlabels_int64s=[5, 3, 9],
        post_transform=after,
        **({"base_values": base} if base else {}),
        **branches,
        **weights_of(entries, "class"),
    )
    path, x = saved(tmp_path / "net.onnx", trees), drawn_rows(31, rng)
    (labels, scores), (want, wanted) = run_trees(path, x), expected(path, x)
    np.testing.assert_array_equal(labels, want)
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [INT64, TensorProto.INT32])
def test_whole_numbers_are_compared_as_floats(tmp_path: Path, kind: int) -> None:
    """ONNX Runtime has classifiers of them, and no regressors."""
    stated = {name.replace("target_", "class_"): value for name, value in STUMP.items()}
    facts = {"classlabels_int64s": [4, 2], "class_weights": [0.75, 0.25]}
    trees = node("TreeEnsembleClassifier", ["x"], ["label", "y"], domain=ML, **(stated | facts))
    path = saved(tmp_path / "net.onnx", trees, width=2, kind=kind)
    x = np.array([[9, 0], [9, 1], [9, -(2**30)]], helper.tensor_dtype_to_np_dtype(kind))
    for found, want in zip(run_trees(path, x), expected(path, x), strict=True):
        np.testing.assert_array_equal(found, want)


def ensemble(weights: list[float], **changes: Any) -> onnx.NodeProto:
    """Two trees of `TreeEnsemble`: two branches with three leaves, and a leaf alone."""
    tensor = numpy_helper.from_array
    stated: dict[str, Any] = {
        "n_targets": 2,
        "tree_roots": [0, 2],
        "nodes_featureids": [1, 3, 0],
        "nodes_splits": tensor(np.array([0.5, -0.25, 0], np.float32)),
        "nodes_modes": tensor(np.array([0, 1, 0], np.uint8)),
        "nodes_truenodeids": [1, 0, 3],
        "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [2, 1, 3],
        "nodes_falseleafs": [1, 1, 1],
        "nodes_missing_value_tracks_true": [0, 1, 0],
        "leaf_targetids": [0, 0, 0, 1],
        "leaf_weights": tensor(np.array(weights, np.float32)),
    }
    return node("TreeEnsemble", ["x"], ["y"], domain=ML, **(stated | changes))


def test_the_newest_operator(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.onnx", ensemble([1.0, 2.5, -3.0, 7.0]), opset=5)
    x = drawn_rows(31, np.random.default_rng(8))
    np.testing.assert_array_equal(run_trees(path, x)[0], expected(path, x)[0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aggregate_function": "MAX"}, "neither added up nor averaged"),
        ({"post_transform": "LOGISTIC"}, "has a post_transform"),
    ],
)
def test_what_no_kernel_computes_is_left_to_onnx_runtime(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    trees = node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=1, **(STUMP | changes))
    with pytest.raises(ModelError, match=reason):
        read_trees(trees)
    path, x = saved(tmp_path / "net.onnx", trees), drawn_rows(ROWS, np.random.default_rng(9))
    found, operators = run_layers(path, {"x": x}, "fp32", batch=ROWS, max_batch=32)
    assert operators == ["onnxruntime"]
    np.testing.assert_array_equal(found[0], expected(path, x)[0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes_truenodeids": [0, 0, 0]}, "branches lead back to themselves"),
        ({"nodes_falsenodeids": [9, 0, 0]}, "a node is missing"),
        ({"nodes_nodeids": [0, 1, 1]}, "two nodes have one number"),
        ({"nodes_treeids": [0, 1, 0]}, "nodes of a tree stand apart"),
        ({"nodes_featureids": [1, 0]}, "attributes differ in length"),
        ({"nodes_featureids": [2**32, 0, 0]}, "out of bounds"),
        ({"n_targets": 2**40}, "expected 1 to 1,048,576 targets"),
        ({"nodes_modes": ["BRANCH_MEMBER", "LEAF", "LEAF"]}, "mode BRANCH_MEMBER"),
        ({"target_ids": [0, 1]}, "adds to a target that is none of 1"),
        ({"target_nodeids": [1, 1]}, "a leaf has other than one weight"),
        ({"target_nodeids": [0, 2]}, "weights are not those of leaves"),
        ({"target_weights": [5.0]}, "weights are not those of leaves"),
    ],
)
def test_trees_that_are_none(changes: dict[str, Any], reason: str) -> None:
    trees = node("TreeEnsembleRegressor", ["x"], ["y"], "trees", domain=ML, **({"n_targets": 1} | STUMP | changes))
    with pytest.raises(ModelError, match=f"node 'trees' .*: .*{reason}"):
        read_trees(trees)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nodes_truenodeids": [1, 4, 3]}, "a node is missing"),
        ({"tree_roots": [0, 3]}, "a root is missing"),
        ({"nodes_missing_value_tracks_true": [1]}, "attributes differ in length"),
    ],
)
def test_newest_trees_that_are_none(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        read_trees(ensemble([1.0, 2, 3, 4], **changes))


def test_a_feature_that_rows_lack_is_refused(tmp_path: Path, told: Told) -> None:
    trees = node("TreeEnsembleRegressor", ["x"], ["y"], "trees", domain=ML, n_targets=1, **STUMP)
    path = saved(tmp_path / "net.onnx", trees, width=1)
    code, _, text = told("compile", path, "--out", tmp_path / "out", "--trials", 0)
    assert (code, (tmp_path / "out").exists()) == (2, False)
    assert "TreeEnsembleRegressor" in text.splitlines()[-1]


def test_trees_need_no_onnx_runtime(tmp_path: Path, told: Told) -> None:
    trees = node("TreeEnsembleRegressor", ["x"], ["y"], "trees", domain=ML, n_targets=1, **STUMP)
    path = saved(tmp_path / "net.onnx", trees)
    assert told("compile", path, "--out", tmp_path / "out", "--trials", 0, "--no-fallback")[0] == 0
    assert told("verify", tmp_path / "out", path)[0] == 0


@given(st.integers(0, 2**32 - 1))
def test_any_attributes_are_trees_or_refused(seed: int) -> None:
    """Nodes are those of the arrays, and walks end, or the node is refused by name."""
    rng = np.random.default_rng(seed)
    branches = random_branches(int(rng.integers(1, 4)), rng, MODES, missing=True)
    name = str(rng.choice([key for key in branches if key != "nodes_modes"]))
    column = branches[name]
    if column:
        column[int(rng.integers(len(column)))] = type(column[0])(rng.integers(-2, 14))
    entries = [(*leaf, 0, 1.0) for leaf in leaves_of(branches)]
    trees = node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, n_targets=1, **branches, **weights_of(entries))
    try:
        found = read_trees(trees)
    except ModelError:
        return
    at = found.roots
    for _ in range(int(found.depths.max())):
        assert ((at >= 0) & (at < len(found.branches.left))).all()
        at = np.where(rng.random(len(at)) < 0.5, found.branches.left[at], found.branches.right[at])
    assert found.branches.is_leaf[at].all()
