"""Casts between float32 and bfloat16 are exact where bfloat16 is."""

from __future__ import annotations

import pytest
from run_kernels import run_and_compare
from units_check import needs_bf16, normal

from veltair.compiler.graph.layer_spec import Activation, LayerSpec


@pytest.mark.parametrize("width", [32, 40, 7])
@pytest.mark.parametrize("source", ["float32", "uint16"])
@needs_bf16
def test_cast(source: str, width: int) -> None:
    other = {"float32": "uint16", "uint16": "float32"}[source]
    x, y = (Activation(name, dtype, (-2, 3, width)) for name, dtype in (("x", source), ("y", other)))
    spec = LayerSpec("cast", "cast", (x,), (y,), {}, 0, max_batch=3)
    error, _ = run_and_compare(spec, {}, [normal(6, 3, width)], batch=3)
    assert error == 0
