"""A sparse matrix times a dense one: every kind of point equals scipy."""

from __future__ import annotations

import numpy as np
import pytest
from run_kernels import compile_ahead, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.recommendation import SpmmParameters
from veltair.machine.isa import cpu_features

random = np.random.default_rng(4)
ROWS, COLUMNS, ENTRIES = 90, 40, 500


@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize("dim", [37, 64])
def test_every_kind_of_point_equals_numpy(dim: int, mcpu: str) -> None:
    """Rows without entries, the first and the last among them, are zeros."""
    rows = np.sort(random.integers(2, ROWS - 3, ENTRIES))
    columns = random.integers(0, COLUMNS, ENTRIES)
    entries = random.standard_normal(ENTRIES).astype(np.float32)
    matrix = np.zeros((ROWS, COLUMNS))
    np.add.at(matrix, (rows, columns), entries)
    offsets = np.searchsorted(rows, np.arange(ROWS + 1))
    weights = {"ids": columns.astype(np.int32), "offsets": offsets, "entries": entries}
    x, y = Activation("x", "float32", (COLUMNS, dim)), Activation("y", "float32", (ROWS, dim))
    spec = LayerSpec("sums", "spmm", (x,), (y,), weights, 1, parameters=SpmmParameters(ENTRIES))
    points = SPACES["spmm"].points(spec, cpu_features())
    kinds = {(point.get("level"), point.get("stores"), point["ahead"] == 0): point for point in points}
    dense = random.standard_normal((COLUMNS, dim)).astype(np.float32)
    wanted = matrix @ dense
    for point in compile_ahead(spec, [*kinds.values()], mcpu):
        error, (found,) = run_and_compare(spec, point, [dense], mcpu=mcpu)
        assert error < 1e-5, point
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max(), point
        assert not found[:2].any() and not found[-3:].any()
