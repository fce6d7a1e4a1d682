"""Parts of kernels that are functions of their own: what they compute, and that LLVM leaves them apart."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.outlined import keep_outlined, outline, outlined
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import tvm_target
from veltair.profiles.runtime.executor import aligned_copy, aligned_zeros

KINDS, WIDTH = 3, 40
LARGE = 4096  # floats: more than TVM takes from the stack
OPERANDS = (Activation("kinds", "int32", (-1,)), Activation("x", "float32", (-1, WIDTH)))
OUTPUTS = (Activation("y", "float32", (-1, WIDTH)), Activation("sum", "float32", (-1,)))


def rows_by_kind(apart: bool) -> Any:
    """Of kind k: y is (k + 1) x, in reverse order from the first k + 1 numbers on; "sum" is that of the row."""

    def body(kinds: Any, x: Any, y: Any, total: Any) -> None:
        with T.parallel(0, x.shape[0]) as row:
            kind, shared = T.bind(kinds[row]), T.alloc_buffer((LARGE,), "float32", scope="global")
            for number in range(KINDS):
                with when(kind == number), outlined() if apart else nullcontext():
                    own = T.alloc_buffer((LARGE,), "float32", scope="global")
                    with T.serial(0, WIDTH) as column:
                        T.buffer_store(own, x[row, column] * T.float32(number + 1), [WIDTH - 1 - column])
                    with T.serial(0, WIDTH) as column:
                        T.buffer_store(y, own[column], [row, column])
                        T.buffer_store(shared, x[row, column], [column])
            T.buffer_store(total, T.float32(0), [row])
            with outlined() if apart else nullcontext(), T.serial(0, WIDTH) as column:
                T.buffer_store(total, total[row] + shared[column], [row])

    return build_prim_func([*OPERANDS, *OUTPUTS], body)


@pytest.mark.parametrize("batch", [1, 7])
def test_parts_compute_what_stood_in_their_place(batch: int) -> None:
    random = np.random.default_rng(batch)
    kinds = random.integers(0, KINDS + 1, batch).astype(np.int32)  # the last one has no code
    x = random.standard_normal((batch, WIDTH), np.float32)
    found = []
    for apart in (False, True):
        y, total = aligned_zeros((batch, WIDTH), "float32"), aligned_zeros((batch,), "float32")
        run = compile_function(rows_by_kind(apart), "main", tvm_target())["main"]
        run(*[tvm_ffi.from_dlpack(a) for a in (aligned_copy(kinds), aligned_copy(x), y, total)])
        known = kinds < KINDS
        np.testing.assert_array_equal(y, np.where(known, kinds + 1, 0).astype(np.float32)[:, None] * x[:, ::-1])
        np.testing.assert_allclose(total[known], x.sum(1)[known], rtol=1e-4, atol=1e-5)
        found.append((y, total[known]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_llvm_inlines_none_of_them() -> None:
    code = compile_function(rows_by_kind(apart=True), "main", tvm_target()).mod.inspect_source("ll")
    attributes = dict(re.findall(r"^attributes (#\d+) = \{(.*)\}$", code, re.MULTILINE))
    parts = re.findall(r"^define internal .* @main_part_\d+\(.*\).*?(#\d+)", code, re.MULTILINE)
    assert len(parts) == KINDS + 1
    assert all("noinline" in attributes[name] for name in parts)


def test_other_functions_stay_as_they_are() -> None:
    module = tvm.IRModule({"main": rows_by_kind(apart=False).with_attr("global_symbol", "main")})
    assert tvm_ffi.structural_equal(outline(module), module)
    assert tvm_ffi.structural_equal(keep_outlined(module), module)
