"""Token embeddings give what numpy gives; negative ids count from the end, others outside of the table read row 0."""

from __future__ import annotations

import numpy as np
import pytest
from run_kernels import run_kernel
from units_check import HERE, UNITS, check, normal, random

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.sequence import LayerNormParameters


@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
def test_embedding(dtype: str, mcpu: str) -> None:
    ids = tuple(Activation(name, "int64", (-1, 9)) for name in ("words", "kinds"))
    weights = {"table0": normal(50, 40), "table1": normal(2, 40), "positions": normal(9, 40)}
    weights |= {"scale": normal(40), "shift": normal(40)}
    y = Activation("y", dtype, (-9, 40))
    spec = LayerSpec("embedding", "embedding", ids, (y,), weights, 0, 3, LayerNormParameters(1e-5))
    values = [random.integers(0, 50, (3, 9)), random.integers(0, 2, (3, 9))]
    check(spec, mcpu, batch=3, values=values)


def test_an_id_that_no_row_has_reads_row_0() -> None:
    ids = (Activation("words", "int64", (1, 3)),)
    weights = {"table0": normal(5, 16), "positions": np.zeros((3, 16), np.float32)}
    weights |= {"scale": np.ones(16, np.float32), "shift": np.zeros(16, np.float32)}
    y = Activation("y", "float32", (3, 16))
    spec = LayerSpec("embedding", "embedding", ids, (y,), weights, 0, parameters=LayerNormParameters(1e-5))
    point = SPACES["embedding"].points(spec, HERE)[0]
    (wild,) = run_kernel(spec, point, [np.array([[2**40, -1, -6]])])
    (first,) = run_kernel(spec, point, [np.array([[0, 4, 0]])])
    np.testing.assert_array_equal(wild, first)
