"""Stores to memory write what they say, and nothing behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from run_kernels import require_features
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import masked_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, ramp
from veltair.compiler.shared_library import compile_function

TARGETS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}


@pytest.mark.parametrize("isa", TARGETS)
@pytest.mark.parametrize("width", [16, 17, 18, 31, 33, 1, 5])
def test_a_masked_store_of_narrowed_integers_writes_their_columns_alone(isa: str, width: int) -> None:
    """Integers of 32 bits are narrowed to 8 in the store: no byte of their upper parts may reach the memory."""
    require_features(frozenset({isa}), "its stores")
    padded = -(-width // LANES) * LANES
    x = (0x01020300 + np.arange(padded, dtype=np.int32) % 200 + 7).astype(np.int32)
    y = np.full((1, padded + LANES), 99, np.uint8)

    def body(X: Any, Y: Any) -> None:
        with T.serial(0, padded // LANES) as vector:
            value = T.cast(X[ramp(vector * LANES)], f"uint8x{LANES}")
            masked_store(Y, T.bind(value), 0, T.bind(vector * LANES), width=width)

    target = {"kind": "llvm", "mcpu": TARGETS[isa]}
    code = compile_function(build_prim_func([x, y], body), "store", target)
    memory = tvm.runtime.tensor(y)
    code["store"](tvm.runtime.tensor(x), memory)
    found = memory.numpy()[0]
    assert np.array_equal(found[:width], x[:width].astype(np.uint8))
    assert (found[width:] == 99).all()
