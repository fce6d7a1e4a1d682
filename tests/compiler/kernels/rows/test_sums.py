"""Sums of one-hot vectors and of concatenated tensors: every version equals numpy."""

from __future__ import annotations

import pytest
from row_models import ROWS, drawn, ids
from run_kernels import compile_ahead, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.recommendation import ConcatSumParameters, OneHotSumParameters
from veltair.machine.isa import cpu_features


@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize("op", ["concat_sum", "one_hot_sum"])
def test_every_version_equals_numpy(op: str, mcpu: str) -> None:
    counts = op == "one_hot_sum"
    widths = (9, 3) if counts else (36, 12, 84)
    inputs = tuple(Activation(f"x{i}", "int64" if counts else "float32", (-1, w)) for i, w in enumerate(widths))
    width = 22 if counts else 12
    parameters = OneHotSumParameters((5, 17), (1.0, 0.5)) if counts else ConcatSumParameters(0.5)
    y = Activation("y", "float32", (-1, width))
    spec = LayerSpec(op, op, inputs, (y,), {}, 1, max_batch=64, parameters=parameters)
    values = [ids(w, 8) if counts else drawn(ROWS, w) for w in widths]
    for point in compile_ahead(spec, SPACES[op].points(spec, cpu_features()), mcpu):
        error, _ = run_and_compare(spec, point, values, ROWS, mcpu)
        assert error < 1e-6, point
