"""Sizes of AMX tiles as the bfloat16 products use them, and the tile configuration of their register blocks.

A register block is two tiles of rows by two tiles of columns: registers 0 to 3 accumulate, 4 and 5 hold the left
operand, 6 and 7 the right one.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.amx import load_tile_configuration
from veltair.compiler.codegen.vectors import Expr

TILE = 16  # rows of a tile, and columns of a tile of sums
STEP = 32  # bfloat16 values in a tile row: the products of one step of the reduction
BLOCK = 2 * TILE  # rows, and columns, of a register block
LEFT, RIGHT = 4, 6  # the first registers of either operand


def configure_tiles(configuration: Any, rows: Expr) -> None:
    """Write a tile configuration to 64 bytes of scratch memory and load it.

    rows: the rows of the accumulators and of the left operand's tiles, at most 16; the right operand's always have 16.
    Source: palette 1, Intel SDM vol. 1, 18.3.
    """
    T.buffer_store(configuration, T.broadcast(T.uint8(0), 64), [T.ramp(0, 1, 64)])
    T.buffer_store(configuration, T.uint8(1), [0])
    for register in range(8):
        T.buffer_store(configuration, T.uint8(64), [16 + 2 * register])
        height = T.cast(rows, "uint8") if register < RIGHT else T.uint8(TILE)
        T.buffer_store(configuration, height, [48 + register])
    load_tile_configuration(T.address_of(configuration[0]))
