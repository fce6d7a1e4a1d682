"""Look-ups that do more than add up rows: every version equals numpy."""

from __future__ import annotations

import numpy as np
import pytest
from row_models import ROWS, drawn
from run_kernels import compile_ahead, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.recommendation import LookupFamily, LookupParameters, Reduction
from veltair.machine.isa import cpu_features

random = np.random.default_rng(9)


@pytest.mark.parametrize("mcpu", ["", "haswell"])
@pytest.mark.parametrize("family", ["weighted", "messages", "triples"])
def test_every_version_equals_numpy(family: str, mcpu: str) -> None:
    """Ids that are no rows read row 0."""
    far = np.array([-1, 40, 2**31, 2**40, -(2**63), 2**63 - 1, 3])
    inputs, values = [Activation("ids", "int64", (-1, 5))], [random.integers(0, 40, (ROWS, 5))]
    values[0][:, 2] = far
    parameters = LookupParameters(family=LookupFamily(family), dim=37, reduce=Reduction.MEAN, norm=1)
    weights = {"table0": drawn(40, 37)}
    if family == "weighted":
        inputs.append(Activation("w", "float32", (-1, 5)))
        values.append(drawn(ROWS, 5))
    elif family == "messages":
        inputs.append(Activation("selves", "int64", (-1,)))
        values.append(far)
    else:
        inputs = [Activation(name, "int64", (-1,)) for name in ("h", "r", "t")]
        values = [far, random.integers(0, 5, ROWS), far[::-1].copy()]
        weights["table1"] = drawn(5, 37)
    y = Activation("y", "float32", (-1,) if family == "triples" else (-1, 37))
    spec = LayerSpec("l", "lookups", tuple(inputs), (y,), weights, 1, 64, parameters)
    for point in compile_ahead(spec, SPACES["lookups"].points(spec, cpu_features())[:6], mcpu):
        error, _ = run_and_compare(spec, point, values, ROWS, mcpu)
        assert error < 1e-5, point
