"""How rows of tables are stored: float32, float16, or 8 bits a number with a scale and a bias in each row.

Rows become floats in registers, never in memory. The last form is FBGEMM's fused one: D unsigned bytes, then scale and
bias as float32; number = byte * scale + bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr, broadcast, ramp, vector_type
from veltair.profiles.artifact.manifest import Storage

TAIL_BYTES = 8  # scale and bias behind the bytes of a row
DTYPES: Mapping[Storage, str] = {"fp32": "float32", "fp16": "float16", "int8": "uint8"}  # of a table
STORAGES = tuple(DTYPES)
RowReader = Callable[[Expr, int], Expr]  # the numbers of a row: offset, how many -> float32 lanes


def encode_rows(table: NDArray[Any], storage: str) -> NDArray[Any]:
    """A float table (R, D) in one of STORAGES. The error of int8 is at most half of a row's range / 255."""
    if storage != "int8":
        return np.ascontiguousarray(table, np.float16 if storage == "fp16" else np.float32)
    wide = np.asarray(table, np.float32)
    low, high = wide.min(1), wide.max(1)
    scale = np.where(high > low, (high - low) / np.float32(255), np.float32(1)).astype(np.float32)
    found = np.empty((len(wide), wide.shape[1] + TAIL_BYTES), np.uint8)
    found[:, :-TAIL_BYTES] = np.clip(np.rint((wide - low[:, None]) / scale[:, None]), 0, 255)
    found[:, -TAIL_BYTES:] = np.stack([scale, low], 1).view(np.uint8)
    return found


def decode_rows(table: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers (R, D) that a stored table stands for."""
    if table.dtype != np.uint8:
        return table.astype(np.float32)
    tail = np.ascontiguousarray(table[:, -TAIL_BYTES:]).view(np.float32)
    return table[:, :-TAIL_BYTES].astype(np.float32) * tail[:, :1] + tail[:, 1:]


def storage_of(table: NDArray[Any]) -> Storage:
    return next(storage for storage, dtype in DTYPES.items() if dtype == table.dtype)


def row_items(dim: Expr, dtype: str) -> Expr:
    """Items of the table's dtype from one row to the next; `dim` is a number or an expression."""
    return dim + TAIL_BYTES if dtype == "uint8" else dim


def row_reader(table: Any, begin: Expr, dim: Expr) -> RowReader:
    """The row of a flat table that begins at an item; `dim` is a number or an int64 expression."""

    def items(offset: Expr, count: int) -> Expr:
        at = begin + T.cast(offset, "int64")
        return table[ramp(at, count)]

    def widened(offset: Expr, count: int) -> Expr:
        return T.cast(items(offset, count), vector_type("float32", count))

    if table.dtype == "uint8":
        scale, bias = (T.bind(T.reinterpret("float32", items(T.int64(0) + dim + k, 4))) for k in (0, 4))
        return lambda offset, count: widened(offset, count) * broadcast(scale, count) + broadcast(bias, count)
    return items if table.dtype == "float32" else widened
