"""Products of blocks of bfloat16 that were packed for AMX's tiles: in tiles, or in dot products of AVX-512-bf16.

A block is one or two tiles of 16 rows by one or two tiles of 16 columns; its sums go to memory. Rows lie as they are,
columns in pairs of the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

from tvm.script.ir_builder import tirx as T

from veltair.compiler.kernels.codegen.amx import (
    load_tile,
    load_tile_configuration,
    multiply_bf16_tiles,
    release_tiles,
    store_tile,
    zero_tile,
)
from veltair.compiler.kernels.codegen.memory import allocate_scratch, vector_load, vector_store
from veltair.compiler.kernels.codegen.multiply_add import broadcast_input, import_dot_product, multiply_add
from veltair.compiler.kernels.codegen.vectors import Expr, broadcast
from veltair.compiler.kernels.matmul.matmul_amx import DEPTH, TILE, configure

ROWS = 8  # of a register tile of dot products
UNROLLED = 4  # steps


class Left(NamedTuple):
    buffer: Any  # of bfloat16 bits
    at: Callable[[int, Expr, Expr], tuple[Expr, ...]]  # of (which tile, row in it, number of the reduction)
    pitch: int  # bytes between rows


class Right(NamedTuple):
    buffer: Any  # of pairs, (…, 16 pairs, 16 columns)
    at: Callable[[int, Expr], tuple[Expr, ...]]  # of (which tile, step of 32 numbers): all but the last two indices


class Product(Protocol):
    def __call__(
        self, out: Any, column: Expr, left: Left, right: Right, steps: int, tall: int = 2, wide: int = 2
    ) -> None:
        """Sums of `steps` steps of 32 numbers of `tall` x `wide` tiles to `out` from `column` on."""


@contextmanager
def tiles(rows: Expr) -> Iterator[Product]:
    """In a task that owns the tiles, each of so many rows."""
    configuration = allocate_scratch((64,), "uint8")
    configure(configuration, rows)
    load_tile_configuration(T.address_of(configuration[0]))

    def product(out: Any, column: Expr, left: Left, right: Right, steps: int, tall: int = 2, wide: int = 2) -> None:
        block = [(half, tile, half * wide + tile) for half in range(tall) for tile in range(wide)]
        for *_, register in block:
            zero_tile(register)
        for step in _counted(steps):
            for half in range(tall):
                first = T.address_of(left.buffer[left.at(half, 0, step * DEPTH)])
                load_tile(4 + half, first, left.pitch)
            for tile in range(wide):
                first = T.address_of(right.buffer[(*right.at(tile, step), 0, 0)])
                load_tile(6 + tile, first, 64)
            for half, tile, register in block:
                multiply_bf16_tiles(register, 4 + half, 6 + tile)
        for half, tile, register in block:
            corner = T.address_of(out[half * TILE, column + tile * TILE])
            store_tile(register, corner, int(out.shape[1]) * 4)

    yield product
    release_tiles()


@contextmanager
def dots(rows: Expr) -> Iterator[Product]:
    """The same in vectors; a row behind the last is the last again."""
    acc = T.alloc_buffer((ROWS * 2,), "float32x16", scope="local")

    def product(out: Any, column: Expr, left: Left, right: Right, steps: int, tall: int = 2, wide: int = 2) -> None:
        for half in range(tall):
            with T.serial(0, T.ceildiv(rows, ROWS)) as group:
                for i in range(ROWS * wide):
                    T.buffer_store(acc, broadcast(0.0), [i])
                with T.grid(steps, TILE) as (step, pair):
                    taps = [T.bind(vector_load(right.buffer, *right.at(tile, step), pair, 0)) for tile in range(wide)]
                    for r in range(ROWS):
                        row = T.min(group * ROWS + r, rows - 1)
                        value = T.bind(broadcast_input(left.buffer, *left.at(half, row, step * DEPTH + pair * 2)))
                        for tile, tap in enumerate(taps):
                            i = r * wide + tile
                            T.buffer_store(acc, multiply_add(acc[i], value, tap), [i])
                for r in range(ROWS):
                    for tile in range(wide):
                        vector_store(out, acc[r * wide + tile], half * TILE + group * ROWS + r, column + tile * TILE)

    with import_dot_product():
        yield product


UNITS: dict[str, Callable[[Expr], AbstractContextManager[Product]]] = {"amx": tiles, "dots": dots}


def unit_of(features: frozenset[str]) -> str:
    """What a CPU with AVX-512-bf16 or AMX takes."""
    return "amx" if "amx_bf16" in features else "dots"


def _counted(steps: int) -> Iterator[Expr]:
    if steps <= UNROLLED:
        yield from range(steps)
        return
    with T.serial(0, steps) as step:
        yield step
