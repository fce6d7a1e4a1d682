"""Decision trees: every version equals numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from random_trees import FEATURES, drawn_rows, leaves_of, random_branches, weights_of
from run_kernels import compile_ahead, run_and_compare, some_of

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.onnx.scikit_learn.tree_ensemble import read_trees
from veltair.compiler.patterns.trees import parameters_of, weights_of_trees
from veltair.machine.isa import cpu_features

ROWS = 37


@pytest.mark.sweep(3)
@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize(("count", "dtype"), [(3, "float32"), (49, "float32"), (25, "float64")])
@pytest.mark.parametrize("kind", ["one", "mirrored", "strict", "of-trees", "leaf-rows"])
def test_every_version_equals_numpy(kind: str, count: int, dtype: str, mcpu: str) -> None:
    rng = np.random.default_rng(count)
    modes = ("BRANCH_LT",) if kind == "strict" else ("BRANCH_LEQ",)
    branches = random_branches(count, rng, modes, missing=kind in ("mirrored", "strict"))
    targets = 18 if kind in ("of-trees", "leaf-rows") else 1
    entries = [
        (tree, number, target, float(rng.standard_normal()))
        for tree, number in leaves_of(branches)
        for target in (range(targets) if kind == "leaf-rows" else (tree % targets,))
    ]
    attributes: dict[str, Any] = branches | weights_of(entries) | {"n_targets": targets, "base_values": [0.5] * targets}
    found = read_trees(helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], **attributes))
    x, y = Activation("x", dtype, (-1, FEATURES)), Activation("y", "float32", (-1, targets))
    weights = weights_of_trees(found, FEATURES)
    parameters = parameters_of(found, weights)
    assert (parameters.mirrored, parameters.leaf_rows) == (kind in ("mirrored", "strict"), kind == "leaf-rows")
    spec = LayerSpec("trees", "trees", (x,), (y,), weights, 1, max_batch=64, parameters=parameters)
    values = drawn_rows(ROWS, rng, np.dtype(dtype).type)
    for point in compile_ahead(spec, some_of(SPACES["trees"].points(spec, cpu_features())), mcpu):
        error, _ = run_and_compare(spec, point, [values], ROWS, mcpu)
        assert error == 0, point
