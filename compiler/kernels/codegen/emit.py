"""What every kernel generator needs: a function around buffers, vectors of 16 floats, epilogues, AMX instructions.

Kernels are generated as TIR by the IR builder: loops that run are builder frames, loops of a register tile are
Python's and leave straight-line code, which LLVM keeps in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Activation

LANES = 16  # floats in a vector; one AVX-512 register, two AVX2 ones
# sigmoid(a x + b x**3) is the normal distribution's share below x, to where x times it is off by 3e-4 at most.
NORMAL = (1.60037536637, 0.06936813633)
Expr = Any  # a TIR expression
Operand = Activation | NDArray[Any]


def primitive(operands: Sequence[Operand], body: Callable[..., None], unaligned: Sequence[Operand] = ()) -> Any:
    """A PrimFunc over the operands' buffers, in order; `body` is called with them inside its frame.

    Buffers are aligned to ALIGNMENT, but for those of `unaligned`, which may begin at any of their elements.

    A dimension that depends on the batch becomes a variable, bound from the tensors at each call.
    """
    with IRBuilder() as builder:
        with T.prim_func():
            T.func_name("main")
            T.func_attr({"tirx.noalias": True})
            variables: dict[int, Expr] = {}
            shapes = []
            for operand in operands:
                shape = operand.physical if isinstance(operand, Activation) else operand.shape
                for dim in shape:
                    if dim < 0 and dim not in variables:
                        variables[dim] = T.int32()
                shapes.append([variables[dim] if dim < 0 else dim for dim in shape])
            handles = [T.arg(f"p{i}", T.handle()) for i in range(len(operands))]
            buffers = [
                # An offset that is only known at the call (and is 0) keeps LLVM from assuming an alignment.
                T.match_buffer(handle, shape, str(operand.dtype), **({"elem_offset": T.int32()} if loose else {}))
                for handle, shape, operand in zip(handles, shapes, operands, strict=True)
                for loose in [any(operand is other for other in unaligned)]
            ]
            body(*buffers)
        return builder.get()


def vector(kind: str, count: int) -> str:
    """The type of so many lanes; one is a number."""
    return f"{kind}x{count}" if count > 1 else kind


def lanes(index: Expr, count: int = LANES) -> Expr:
    """Neighbouring elements from `index` on."""
    return T.ramp(index, 1, count) if count > 1 else index


def splat(value: Expr | float, count: int = LANES) -> Expr:
    """One number in every lane: a float, where it is Python's."""
    value = T.float32(value) if isinstance(value, (int, float)) else value
    return T.broadcast(value, count) if count > 1 else value


def load(buffer: Any, *index: Expr, count: int = LANES) -> Expr:
    """Floats from here on; bfloat16 bits are widened."""
    value = buffer[(*index[:-1], lanes(index[-1], count))]
    return widened(value, count) if buffer.dtype == "uint16" else value


def store(buffer: Any, value: Expr, *index: Expr, count: int = LANES) -> None:
    """Floats to here on; rounded to nearest even where the buffer holds bfloat16 bits."""
    value = bf16_bits(value, count) if buffer.dtype == "uint16" else value
    T.buffer_store(buffer, value, [*index[:-1], lanes(index[-1], count)])


def columns(width: int) -> Iterator[tuple[Expr, int]]:
    """All columns of a row, (first, how many): in a loop over vectors of 16, and a shorter one."""
    if width >= LANES:
        with T.serial(0, width // LANES) as number:
            yield number * LANES, LANES
    if width % LANES:
        yield T.int32(width - width % LANES), width % LANES


def permuted(values: Expr, places: Expr) -> Expr:
    """Of 16 floats those at 16 places (int32), on a CPU with AVX-512."""
    return T.call_llvm_pure_intrin("float32x16", "llvm.x86.avx512.permvar.sf.512", values, places)


def store_within(buffer: Any, value: Expr, *index: Expr, width: int) -> None:
    """Like `store`, but only what lies below column `width`, the first of the 16 columns being below it."""
    column = index[-1]
    with when(column + LANES <= width):
        store(buffer, value, *index)
    if width % LANES:
        with when(column + LANES > width):
            value = bf16_bits(value) if buffer.dtype == "uint16" else value
            mask = lanes(0) < splat(T.int32(width % LANES))
            name = f"llvm.masked.store.{_suffix(buffer)}.p0"
            T.evaluate(T.call_llvm_intrin("void", name, value, T.address_of(buffer[tuple(index)]), mask))


def load_first(buffer: Any, *index: Expr, count: Expr) -> Expr:
    """Like `load`, but the first `count` elements alone are read, and the others are zero."""
    mask = lanes(0) < splat(T.cast(count, "int32"))
    zeros = splat(T.cast(0, buffer.dtype))
    where = T.address_of(buffer[tuple(index)])
    name = f"llvm.masked.load.{_suffix(buffer)}.p0"
    value = T.call_llvm_intrin(f"{buffer.dtype}x{LANES}", name, where, mask, zeros)
    return widened(value) if buffer.dtype == "uint16" else value


def _suffix(buffer: Any) -> str:
    return f"v{LANES}" + {"float32": "f32", "uint16": "i16"}[str(buffer.dtype)]


def widened(bits: Expr, count: int = LANES) -> Expr:
    """Floats of the bits of bfloat16."""
    wide = T.shift_left(T.cast(bits, vector("uint32", count)), whole(16, count))
    return T.reinterpret(vector("float32", count), wide)


def bf16_bits(value: Expr, count: int = LANES) -> Expr:
    """Floats rounded to nearest even, as the bits of bfloat16: 16, 8 or one on a CPU with AVX-512-bf16, other numbers
    of them (and no NaN) on any."""
    if count == 1:
        return T.Shuffle([bf16_bits(splat(value))], [0])
    if count not in (8, LANES):
        bits = T.bind(T.reinterpret(vector("uint32", count), value))
        return T.cast(upper_half(bits, count), vector("uint16", count))
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * count}"
    return T.reinterpret(f"uint16x{count}", T.call_llvm_pure_intrin(f"bfloat16x{count}", name, value))


def bf16_pair(low: Expr, high: Expr) -> Expr:
    """The same of two vectors in one instruction, the first one's below."""
    narrow = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"  # the second operand lands below
    return T.reinterpret("uint16x32", T.call_llvm_pure_intrin("bfloat16x32", narrow, high, low))


def upper_half(bits: Expr, count: int = LANES) -> Expr:
    """The bits of bfloat16 nearest to those of finite or infinite floats, ties to even."""
    odd = T.bitwise_and(T.shift_right(bits, whole(16, count)), whole(1, count))
    return T.shift_right(bits + whole(0x7FFF, count) + odd, whole(16, count))


def whole(value: int, count: int = LANES) -> Expr:
    """One unsigned integer in every lane."""
    return splat(T.uint32(value), count)


def prefetch(element: Expr, level: int = 2) -> None:
    """Bring the cache line of an element of a buffer to L1 or L2; it may lie behind the buffer's end."""
    hint = (0, 4 - level, 1)  # to read, how near, data
    T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch.p0", T.address_of(element), *map(T.int32, hint)))


def activate(value: Expr, activation: str, rough: bool = False) -> Expr:
    """The activation function at the end of an epilogue.

    "none", "relu", "clip:low:high", "leaky:slope", "elu:alpha", "sigmoid", "hardsigmoid:alpha:beta", "tanh", "gelu"
    (by erf), "gelu-tanh", or "gated-…": the value times one of these of it.

    rough: the result is rounded to bfloat16, on a CPU with AVX-512.
    """
    from veltair.compiler.kernels.codegen import vector_math as vm

    kind, *numbers = activation.split(":")
    parameters = [splat(float(number)) for number in numbers]
    value = T.bind(value)
    if kind.startswith("gated-"):
        return value * activate(value, activation.removeprefix("gated-"), rough)
    if kind == "relu":
        return T.max(value, splat(0.0))
    if kind == "clip":
        low, high = parameters
        return T.min(T.max(value, low), high)
    if kind == "leaky":
        return T.max(value, splat(0.0)) + T.min(value, splat(0.0)) * parameters[0]
    if kind == "elu":
        return T.max(value, splat(0.0)) + (vm.exp(T.min(value, splat(0.0))) - splat(1.0)) * parameters[0]
    if kind == "hardsigmoid":
        return T.min(T.max(value * parameters[0] + parameters[1], splat(0.0)), splat(1.0))
    if kind == "gelu" and rough:
        return value * vm.rough_sigmoid(value * (value * value * splat(NORMAL[1]) + splat(NORMAL[0])))
    if kind == "gelu":
        return (value * splat(0.5)) * (splat(1.0) + vm.erf(value * splat(0.5**0.5)))
    if kind == "gelu-tanh":
        return value * vm.sigmoid((value + value * value * value * splat(0.044715)) * splat(2 * (2 / pi) ** 0.5))
    if kind == "sigmoid" and rough:
        return vm.rough_sigmoid(value)
    if kind in ("sigmoid", "tanh"):
        return {"sigmoid": vm.sigmoid, "tanh": vm.tanh}[kind](value)
    return value


@contextmanager
def when(condition: Expr) -> Iterator[None]:
    """Code that runs where the condition holds."""
    with T.If(condition), T.Then():
        yield


def amx(name: str, *arguments: Expr) -> None:
    """One AMX instruction; numbers of tile registers are 8-bit immediates."""
    T.evaluate(T.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def scratch(shape: tuple[int, ...], dtype: str) -> Any:
    """Memory of a task that tiles are stored to.

    TVM cuts buffers down to what it sees read and written, and it does not see how far a tile reaches: the last
    element is touched, so that rows keep their distance.
    """
    buffer = T.alloc_buffer(shape, dtype, scope="global")
    T.buffer_store(buffer, T.cast(0, dtype), [extent - 1 for extent in shape])
    return buffer


def tile_configuration() -> NDArray[np.uint8]:
    """Palette 1: eight tiles of 16 rows of 64 bytes (Intel SDM vol. 1, 18.3)."""
    configuration = np.zeros(64, np.uint8)
    configuration[0] = 1
    configuration[16:32].view(np.uint16)[:] = 64
    configuration[48:56] = 16
    return configuration


def pad_to(array: NDArray[Any], axis: int, multiple: int) -> NDArray[Any]:
    """Zeros behind, up to a multiple."""
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array, widths) if missing else array


def to_bf16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even, keep the upper half."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
