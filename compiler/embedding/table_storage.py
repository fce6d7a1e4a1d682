"""Storage of a model's embedding tables: as they come, or in fewer bytes (`veltair compile --tables`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.embedding.row_storage import DTYPES, decode_rows, encode_rows, row_items
from veltair.errors import ModelError
from veltair.profiles.artifact.manifest import Storage

# Allowed error over the output's largest value, besides that of the precision, of a whole model or one layer. A number
# is off by 2**-11 of itself in fp16, and in int8 by half of 1 / 255 of its row's range, 0.4 % of the largest at most.
TOLERANCE = {"fp32": 0.0, "fp16": 5e-3, "int8": 5e-2}
LAYER_TOLERANCE = {"fp32": 0.0, "fp16": 1e-3, "int8": 1e-2}
LARGEST = {"fp16": 65504.0, "int8": 1.7e38}  # greatest magnitude; in int8 the range of a row is a float
MAPPED_BYTES = 1 << 26  # larger tables go to a file
NUMBERS_AT_ONCE = 1 << 22  # numbers that are stored at once


@dataclass(slots=True)
class TableStorage:
    """Stores the float tables of one model. Files in `folder` back large ones.

    >>> TableStorage("fp16").encode("items", np.zeros((2, 3), np.float32)).dtype
    dtype('float16')
    """

    storage: Storage = "fp32"
    folder: Path | None = None
    error: float = 0.0  # the largest of any number so far, over the largest magnitude in its table
    _kept: dict[str, NDArray[Any]] = field(default_factory=dict)

    def encode(self, name: str, table: NDArray[Any]) -> NDArray[Any]:
        """A table (R, D) of floats as kernels read it, encoded once for all its readers.

        Rows that the model's file stores in bytes stay as they are. Raises ModelError for numbers that do not fit.
        """
        if self.storage == "fp32" or table.dtype != np.float32:
            return table
        if name not in self._kept:
            rows, dim = table.shape
            kept = self.allocate((rows, row_items(dim, DTYPES[self.storage])))
            self.write_rows(name, table, kept)
            self._kept[name] = kept
        return self._kept[name]

    def write_rows(self, name: str, table: NDArray[Any], out: NDArray[Any]) -> None:
        """Writes a whole table to `out` as it is stored. Raises ModelError for numbers that do not fit."""
        step = max(NUMBERS_AT_ONCE // table.shape[1], 1)
        self.write_parts(name, lambda first: table[first : first + step], step, out)

    def allocate(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Zeros for rows, backed by a file where they are many."""
        dtype = np.dtype(DTYPES[self.storage])
        size = int(np.prod(shape)) * dtype.itemsize
        if self.folder is None or size < MAPPED_BYTES:
            return np.zeros(shape, dtype)
        return np.memmap(self.folder / f"rows.{len(list(self.folder.glob('rows.*')))}", dtype, "w+", shape=shape)

    def write_parts(self, name: str, part: Callable[[int], NDArray[Any]], step: int, out: NDArray[Any]) -> None:
        """Writes a table's rows, `part(first)` gives `step` of them as floats, to `out`. Raises ModelError as above."""
        worst = largest = 0.0
        for first in range(0, len(out), step):
            wide = np.asarray(part(first), np.float32)
            here = out[first : first + step]
            if self.storage == "fp32":
                here[...] = wide
                continue
            limit = LARGEST[self.storage]
            beyond = ~(np.abs(wide) <= limit)  # NaN, too
            if beyond.any():
                row, place = (int(i) for i in np.argwhere(beyond)[0])
                raise ModelError(
                    f"table {name!r}: row {first + row} holds {wide[row, place]}; rows of {self.storage} hold numbers "
                    f"up to {limit:g}"
                )
            here[...] = encode_rows(wide, self.storage)
            worst = max(worst, float(np.abs(decode_rows(here) - wide).max(initial=0)))
            largest = max(largest, float(np.abs(wide).max(initial=0)))
        self.error = max(self.error, worst / max(largest, 1e-30))
