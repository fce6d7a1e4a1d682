"""AMX instructions: eight tile registers of 16 rows of 64 bytes, and products of two of them added to a third.

Kernels number the registers themselves. An instruction takes the number as an 8-bit immediate, so it is a Python int.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr


def tile_configuration() -> NDArray[np.uint8]:
    """The operand of `load_tile_configuration`: palette 1, eight tiles of 16 rows of 64 bytes (Intel SDM vol. 1, 18.3).

    >>> tile_configuration()[48:56].tolist()  # rows of each tile
    [16, 16, 16, 16, 16, 16, 16, 16]
    """
    configuration = np.zeros(64, np.uint8)
    configuration[0] = 1
    configuration[16:32].view(np.uint16)[:] = 64
    configuration[48:56] = 16
    return configuration


def load_tile_configuration(address: Expr) -> None:
    """Configure the tile registers of this thread. The address is that of a `tile_configuration`."""
    _instruction("ldtilecfg", address)


def release_tiles() -> None:
    """Give the tile registers back, so that the kernel does not save them at a context switch."""
    _instruction("tilerelease")


def zero_tile(register: int) -> None:
    """Set all elements of a tile to zero."""
    _instruction("tilezero", T.uint8(register))


def load_tile(register: int, address: Expr, stride_bytes: int) -> None:
    """Load 16 rows of 64 bytes that begin `stride_bytes` apart."""
    _instruction("tileloadd64", T.uint8(register), address, T.int64(stride_bytes))


def store_tile(register: int, address: Expr, stride_bytes: int) -> None:
    """Store 16 rows of 64 bytes that begin `stride_bytes` apart."""
    _instruction("tilestored64", T.uint8(register), address, T.int64(stride_bytes))


def multiply_bf16_tiles(sums: int, left: int, right: int) -> None:
    """sums (16 x 16 floats) += left (16 x 32 bfloat16) @ right (32 x 16 bfloat16, as 16 rows of 16 pairs)."""
    _instruction("tdpbf16ps", T.uint8(sums), T.uint8(left), T.uint8(right))


def multiply_int8_tiles(sums: int, left: int, right: int, *, signed: bool) -> None:
    """sums (16 x 16 int32) += left (16 x 64, of int8 if `signed`, else uint8) @ right (64 x 16 int8, as 16 rows of 16
    quads)."""
    _instruction("tdpbssd" if signed else "tdpbusd", T.uint8(sums), T.uint8(left), T.uint8(right))


def _instruction(name: str, *arguments: Expr) -> None:
    T.evaluate(T.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))
