"""Microkernels of bfloat16 products, for operands packed as AMX tiles: in tiles, or in dot products of AVX-512-bf16.

A microkernel computes a register block of one or two tiles of 16 rows by one or two tiles of 16 columns; its sums go to
memory. Rows of the left operand lie as they are; the right operand lies in pairs along the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.amx import load_tile, multiply_bf16_tiles, release_tiles, store_tile, zero_tile
from veltair.compiler.codegen.memory import allocate_scratch, vector_load, vector_store
from veltair.compiler.codegen.multiply_add import broadcast_input, import_dot_product, multiply_add
from veltair.compiler.codegen.vectors import Expr, broadcast
from veltair.compiler.kernels.matmul.amx_tiles import LEFT, RIGHT, STEP, TILE, configure_tiles
from veltair.compiler.kernels.matmul.matrix_unit import MatrixUnit

ROWS = 8  # of a register tile of dot products
UNROLLED = 4  # up to this number, steps are unrolled instead of looped over


@dataclass(frozen=True, slots=True)
class LeftOperand:
    """Rows of bfloat16 values.

    ::

        LeftOperand(rows, lambda half, r, k: (half * TILE + r, k), stride_bytes=2 * depth)
    """

    buffer: Any  # of bfloat16 bits
    index: Callable[[int, Expr, Expr], tuple[Expr, ...]]  # of (tile, row in it, place in the reduction)
    stride_bytes: int  # between rows


@dataclass(frozen=True, slots=True)
class RightOperand:
    """Columns packed in pairs along the reduction.

    ::

        RightOperand(packed, lambda tile, step: (panel, step, tile))
    """

    buffer: Any  # of pairs, (…, 16 pairs, 16 columns)
    index: Callable[[int, Expr], tuple[Expr, ...]]  # of (tile, step of 32 values): all but the last two indices


class Microkernel(Protocol):
    """Emits the code of one register block.

    ::

        with open_microkernel(MatrixUnit.AMX, rows) as multiply:
            multiply(sums, 0, left, right, steps)
    """

    def __call__(
        self,
        out: Any,
        column: Expr,
        left: LeftOperand,
        right: RightOperand,
        steps: int,
        row_tiles: int = 2,
        column_tiles: int = 2,
    ) -> None:
        """Store the sums of `steps` steps of 32 values each to `out` (rows, columns), from `column` on."""


@contextmanager
def amx_microkernel(rows: Expr) -> Iterator[Microkernel]:
    """A microkernel on AMX tiles of `rows` rows, which belong to the task as long as the context lasts."""
    configuration = allocate_scratch((64,), "uint8")
    configure_tiles(configuration, rows)

    def multiply(
        out: Any,
        column: Expr,
        left: LeftOperand,
        right: RightOperand,
        steps: int,
        row_tiles: int = 2,
        column_tiles: int = 2,
    ) -> None:
        block = [(half, tile, half * column_tiles + tile) for half in range(row_tiles) for tile in range(column_tiles)]
        for *_, register in block:
            zero_tile(register)
        for step in _loop_over_steps(steps):
            for half in range(row_tiles):
                address = T.address_of(left.buffer[left.index(half, 0, step * STEP)])
                load_tile(LEFT + half, address, left.stride_bytes)
            for tile in range(column_tiles):
                load_tile(RIGHT + tile, T.address_of(right.buffer[(*right.index(tile, step), 0, 0)]), 64)
            for half, tile, register in block:
                multiply_bf16_tiles(register, LEFT + half, RIGHT + tile)
        for half, tile, register in block:
            corner = T.address_of(out[half * TILE, column + tile * TILE])
            store_tile(register, corner, int(out.shape[1]) * 4)

    yield multiply
    release_tiles()


@contextmanager
def dot_product_microkernel(rows: Expr) -> Iterator[Microkernel]:
    """A microkernel on vectors. A row behind the last of `rows` is the last one again."""
    sums = T.alloc_buffer((ROWS * 2,), "float32x16", scope="local")

    def multiply(
        out: Any,
        column: Expr,
        left: LeftOperand,
        right: RightOperand,
        steps: int,
        row_tiles: int = 2,
        column_tiles: int = 2,
    ) -> None:
        for half in range(row_tiles):
            with T.serial(0, T.ceildiv(rows, ROWS)) as group:
                for i in range(ROWS * column_tiles):
                    T.buffer_store(sums, broadcast(0.0), [i])
                with T.grid(steps, TILE) as (step, pair):
                    weights = [
                        T.bind(vector_load(right.buffer, *right.index(tile, step), pair, 0))
                        for tile in range(column_tiles)
                    ]
                    for r in range(ROWS):
                        row = T.min(group * ROWS + r, rows - 1)
                        value = T.bind(broadcast_input(left.buffer, *left.index(half, row, step * STEP + pair * 2)))
                        for tile, weight in enumerate(weights):
                            i = r * column_tiles + tile
                            T.buffer_store(sums, multiply_add(sums[i], value, weight), [i])
                for r in range(ROWS):
                    for tile in range(column_tiles):
                        row = half * TILE + group * ROWS + r
                        vector_store(out, sums[r * column_tiles + tile], row, column + tile * TILE)

    with import_dot_product():
        yield multiply


def open_microkernel(unit: MatrixUnit, rows: Expr) -> AbstractContextManager[Microkernel]:
    """The microkernel of a unit for tiles of `rows` rows, in a context that owns the unit's registers."""
    return {MatrixUnit.AMX: amx_microkernel, MatrixUnit.DOT_PRODUCT: dot_product_microkernel}[unit](rows)


def _loop_over_steps(steps: int) -> Iterator[Expr]:
    if steps <= UNROLLED:
        yield from range(steps)
        return
    with T.serial(0, steps) as step:
        yield step
