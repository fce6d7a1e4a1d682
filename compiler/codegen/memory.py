"""Loads, stores, prefetches and scratch memory of kernels."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.bf16 import bf16_to_float32, float32_to_bf16
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp


def vector_load(buffer: Any, *index: Expr, count: int = LANES) -> Expr:
    """`count` consecutive elements as floats; bfloat16 bits are widened."""
    value = buffer[(*index[:-1], ramp(index[-1], count))]
    return bf16_to_float32(value, count) if buffer.dtype == "uint16" else value


def vector_store(buffer: Any, value: Expr, *index: Expr, count: int = LANES) -> None:
    """Store `count` floats to consecutive elements; rounded to nearest even where the buffer holds bfloat16 bits."""
    value = float32_to_bf16(value, count) if buffer.dtype == "uint16" else value
    T.buffer_store(buffer, value, [*index[:-1], ramp(index[-1], count)])


def masked_load(buffer: Any, *index: Expr, count: Expr) -> Expr:
    """Like `vector_load`, but only the first `count` elements are read; the other lanes are zero."""
    mask = ramp(0) < broadcast(T.cast(count, "int32"))
    zeros = broadcast(T.cast(0, buffer.dtype))
    address = T.address_of(buffer[tuple(index)])
    name = f"llvm.masked.load.{_llvm_type(buffer)}.p0"
    value = T.call_llvm_intrin(f"{buffer.dtype}x{LANES}", name, address, mask, zeros)
    return bf16_to_float32(value) if buffer.dtype == "uint16" else value


def masked_store(buffer: Any, value: Expr, *index: Expr, width: int, left: Expr | int = 0) -> None:
    """Like `vector_store`, but only `width` columns from `left` on are written. The first of the 16 must be one."""
    column = index[-1] - left
    with when(column + LANES <= width):
        vector_store(buffer, value, *index)
    if width % LANES == 1:
        # LLVM makes a store of four bytes of one that a constant mask leaves a single narrowed lane of.
        with when(column + LANES > width):
            first = T.Shuffle([T.bind(value)], [0])
            T.buffer_store(buffer, float32_to_bf16(first, 1) if buffer.dtype == "uint16" else first, [*index])
    elif width % LANES:
        with when(column + LANES > width):
            value = float32_to_bf16(value) if buffer.dtype == "uint16" else value
            mask = ramp(0) < broadcast(T.int32(width % LANES))
            name = f"llvm.masked.store.{_llvm_type(buffer)}.p0"
            T.evaluate(T.call_llvm_intrin("void", name, value, T.address_of(buffer[tuple(index)]), mask))


def _llvm_type(buffer: Any) -> str:
    """LLVM's name of a vector of the buffer's elements."""
    return f"v{LANES}" + {"float32": "f32", "uint16": "i16", "uint8": "i8", "int8": "i8"}[str(buffer.dtype)]


def prefetch(element: Expr, level: int = 2) -> None:
    """Bring the cache line of an element of a buffer to L1 or L2; it may lie behind the buffer's end."""
    hint = (0, 4 - level, 1)  # to read, how near, data
    T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", T.address_of(element), *map(T.int32, hint)))


def allocate_scratch(shape: tuple[int, ...], dtype: str) -> Any:
    """Memory of one task, which AMX tiles may be stored to.

    TVM cuts a buffer down to the accesses it finds, and it cannot tell how far a tile reaches. So the last
    element is written first, and the rows keep their distance.
    """
    buffer = T.alloc_buffer(shape, dtype, scope="global")
    T.buffer_store(buffer, T.cast(0, dtype), [extent - 1 for extent in shape])
    return buffer


def vector_in_register(value: Expr) -> Expr:
    """A vector of floats in a variable of its own, which LLVM makes a register.

    A binding would do, but TVM looks through bindings, in time exponential in the length of their chain.
    """
    variable = T.alloc_buffer((LANES,), "float32", scope="global")  # TVM would ask the heap for a local one
    vector_store(variable, value, 0)
    return vector_load(variable, 0)


def index_in_register(value: Expr) -> Expr:
    """An index (int32) in a variable of its own, like `vector_in_register`.

    TVM no longer knows that it is not negative: divide it by `T.truncdiv`, since `//` would ask at run time.
    """
    variable = T.alloc_buffer((1,), "int32", scope="global")
    T.buffer_store(variable, value, [0])
    return variable[0]


def divide_in_registers(value: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Quotient and remainder of two indices that are not negative.

    Where the divisor is known at run time alone, TVM proves things about the quotient again and again: bound by `//`,
    it took two thirds of the compile of a matrix product.
    """
    return index_in_register(T.truncdiv(value, divisor)), index_in_register(T.truncmod(value, divisor))
