"""Sums of four products of 8-bit integers, unsigned inputs by signed weights, added to 16 sums in int32.

AVX512-VNNI does it in one instruction. Elsewhere even and odd bytes are widened to 16 bits, whose products are added in
pairs: exact, since 255 * 128 * 2 is far below 2^31. The instruction that multiplies bytes before VNNI (vpmaddubsw)
saturates at 16 bits and would be wrong.

Like the dot product of bfloat16 (`multiply_add`), they are functions in LLVM's own language. Four bytes travel as one
int32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import LANES, Expr

QUAD = 4  # values of the reduction in one step
_UPPER_BITS = -0x7F7F7F80  # 0x80 in every byte: flipped, signed ones are unsigned, plus 128
_HEAD = "define internal <16 x i32> @veltair_dot_int8(<16 x i32> %s, <16 x i32> %x, <16 x i32> %w) alwaysinline {\n"
_VNNI = f"""
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <16 x i32>, <16 x i32>)
{_HEAD}
  %r = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %s, <16 x i32> %x, <16 x i32> %w)
  ret <16 x i32> %r
}}
"""
_EIGHTS, _LOW = ", ".join(["i16 8"] * 32), ", ".join(["i16 255"] * 32)
_SPLIT = f"""
  %x16 = bitcast <16 x i32> %x to <32 x i16>
  %w16 = bitcast <16 x i32> %w to <32 x i16>
  %xe = and <32 x i16> %x16, <{_LOW}>
  %xo = lshr <32 x i16> %x16, <{_EIGHTS}>
  %wl = shl <32 x i16> %w16, <{_EIGHTS}>
  %we = ashr <32 x i16> %wl, <{_EIGHTS}>
  %wo = ashr <32 x i16> %w16, <{_EIGHTS}>
"""
_AVX512 = f"""
declare <16 x i32> @llvm.x86.avx512.pmaddw.d.512(<32 x i16>, <32 x i16>)
{_HEAD}{_SPLIT}
  %e = call <16 x i32> @llvm.x86.avx512.pmaddw.d.512(<32 x i16> %xe, <32 x i16> %we)
  %o = call <16 x i32> @llvm.x86.avx512.pmaddw.d.512(<32 x i16> %xo, <32 x i16> %wo)
  %a = add <16 x i32> %s, %e
  %r = add <16 x i32> %a, %o
  ret <16 x i32> %r
}}
"""

_INTERLEAVED = ", ".join(f"i32 {16 * part + lane}" for lane in range(LANES) for part in range(4))
_INTERLEAVE = f"""
define internal <16 x i32> @veltair_interleave_bytes(<16 x i8> %a, <16 x i8> %b, <16 x i8> %c, <16 x i8> %d)
  alwaysinline {{
  %ab = shufflevector <16 x i8> %a, <16 x i8> %b, <32 x i32> <{", ".join(f"i32 {i}" for i in range(32))}>
  %cd = shufflevector <16 x i8> %c, <16 x i8> %d, <32 x i32> <{", ".join(f"i32 {i}" for i in range(32))}>
  %bytes = shufflevector <32 x i8> %ab, <32 x i8> %cd, <64 x i32> <{_INTERLEAVED}>
  %r = bitcast <64 x i8> %bytes to <16 x i32>
  ret <16 x i32> %r
}}
"""


def _half(name: str, begin: int) -> str:
    lanes = ", ".join(f"i32 {lane}" for lane in range(begin, begin + LANES))
    return f"  %{name}{begin} = shufflevector <32 x i16> %{name}, <32 x i16> poison, <16 x i32> <{lanes}>\n"


_PAIRS = "@llvm.x86.avx2.pmadd.wd(<16 x i16>"
_AVX2 = (
    f"\ndeclare <8 x i32> {_PAIRS}, <16 x i16>)\n{_HEAD}{_SPLIT}"
    + "".join(_half(name, begin) for name in ("xe", "xo", "we", "wo") for begin in (0, LANES))
    + "".join(
        f"  %{side}{begin} = call <8 x i32> {_PAIRS} %x{side}{begin}, <16 x i16> %w{side}{begin})\n"
        for side in "eo"
        for begin in (0, LANES)
    )
    + "".join(f"  %h{begin} = add <8 x i32> %e{begin}, %o{begin}\n" for begin in (0, LANES))
    + "  %h = shufflevector <8 x i32> %h0, <8 x i32> %h16, <16 x i32> <"
    + ", ".join(f"i32 {lane}" for lane in range(LANES))
    + ">\n  %r = add <16 x i32> %s, %h\n  ret <16 x i32> %r\n}\n"
)


def import_int8_dot(features: frozenset[str]) -> AbstractContextManager[Any]:
    """A frame of code in which `add_quads` and `interleave` may be called, on a CPU with these features."""
    code = _VNNI if "avx512_vnni" in features else _AVX512 if "avx512" in features else _AVX2
    frame: AbstractContextManager[Any] = T.attr(T.int32(0), "pragma_import_llvm", code + _INTERLEAVE)
    return frame


def add_quads(sums: Expr, inputs: Expr, weights: Expr) -> Expr:
    """16 sums with four products more each; inputs are unsigned, weights signed, and four lie in one int32."""
    return T.call_extern("int32x16", "veltair_dot_int8", sums, inputs, weights)


def broadcast_quad(buffer: Any, *index: Expr, count: int = QUAD) -> Expr:
    """Four neighbouring inputs in all lanes, zero behind the first `count`; of int8, plus 128."""
    *outer, first = index
    if count == QUAD:
        quad = T.reinterpret("int32", buffer[(*outer, T.ramp(first, 1, QUAD))])
    else:
        quad = T.int32(0)
        for i in range(count):
            byte = T.bitwise_and(T.cast(buffer[(*outer, first + i)], "int32"), T.int32(255))
            quad = T.bitwise_or(quad, T.shift_left(byte, T.int32(8 * i)))
    if buffer.dtype == "int8":
        quad = T.bitwise_xor(quad, T.int32(_UPPER_BITS))
    return T.broadcast(quad, LANES)


def interleave(*steps: Expr, signed: bool) -> Expr:
    """Four vectors of 16 inputs as 16 quads, one of each; signed ones plus 128."""
    quads = T.call_extern("int32x16", "veltair_interleave_bytes", *steps)
    if signed:
        quads = T.bitwise_xor(quads, T.broadcast(T.int32(_UPPER_BITS), LANES))
    return quads
