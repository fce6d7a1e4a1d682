"""Embedding tables of a feature description: where their rows come from, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.errors import ModelError

Name = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f]{1,128}$")]
Count = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
NUMBERS_AT_ONCE = 1 << 22  # copied numbers
Small = Annotated[int, msgspec.Meta(ge=1, le=4096)]


class FeatureTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of an embedding, from a file or random from a seed. `file` is .npy, or raw little-endian from `offset` on.

    >>> FeatureTable(name="users", rows=10, dim=4, seed=1).dtype
    'float32'
    """

    name: Name
    rows: Count
    dim: Small
    dtype: Literal["float32", "float16"] = "float32"
    file: str | None = None
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    seed: int | None = None


def resolve_in_folder(path: Path, name: str, where: str) -> Path:
    """The path of a file in or below the description's folder. Raises ModelError for any other."""
    base = path.absolute().parent.resolve()
    found = (base / name).resolve()
    if not found.is_relative_to(base):
        raise ModelError(f"{where}: {name!r} lies outside of the description's folder")
    return found


def load_rows(table: FeatureTable, path: Path) -> NDArray[np.float32]:
    """All rows of a table, (rows, dim). Raises ModelError for a file that cannot be read."""
    rows, step, part = np.empty((table.rows, table.dim), np.float32), *read_parts(table, path)
    for first in range(0, table.rows, step):
        rows[first : first + step] = part(first)
    return rows


def read_parts(table: FeatureTable, path: Path) -> tuple[int, Callable[[int], NDArray[Any]]]:
    """How many rows to read at once, and a function that reads up to that many rows from a given one.

    Rows are asked for in their order, since random ones are drawn. Raises ModelError for a file that cannot be read.
    """
    step = max(NUMBERS_AT_ONCE // table.dim, 1)
    if table.file is not None:
        source = _map_file(table, path)
        return step, lambda first: source[first : first + step]
    rng = np.random.default_rng(table.seed)
    return step, lambda first: rng.random((min(step, table.rows - first), table.dim), np.float32) - np.float32(0.5)


def _map_file(table: FeatureTable, path: Path) -> NDArray[Any]:
    shape, where = (table.rows, table.dim), f"{path}: table {table.name!r}: file"
    assert table.file is not None
    file = resolve_in_folder(path, table.file, where)
    try:
        if file.suffix == ".npy":
            values: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        else:
            dtype = np.dtype(table.dtype).newbyteorder("<")
            if file.stat().st_size < table.offset + table.rows * table.dim * dtype.itemsize:
                raise ValueError(f"it ends before row {table.rows - 1}")
            values = np.memmap(file, dtype, "r", table.offset, shape)
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(f"{where}: {file}: {error}") from None
    if values.shape != shape or values.dtype != np.dtype(table.dtype):
        raise ModelError(f"{where}: expected {table.dtype} {shape}, got {values.dtype} {values.shape}")
    return values
