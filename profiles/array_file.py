"""Reads users' files of numpy arrays (.npz)."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import DataError

MOST_BYTES = 8 << 30  # of all arrays of a file


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file that `numpy.savez` wrote, by name; none is unpickled. Raises DataError, one line.

    >>> read_arrays(Path("nowhere.npz"))
    Traceback (most recent call last):
    ...
    veltair.errors.DataError: nowhere.npz: No such file or directory
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST_BYTES:
            raise DataError(f"{path}: {size} bytes of arrays; expected at most {MOST_BYTES}")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except (ValueError, EOFError, MemoryError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error):
        # What numpy and zipfile raise for an object, a cut or forged archive, its encryption and its compression.
        raise DataError(
            f"{path}: expected a file of np.savez, a file of numbers or texts without pickled objects (.npz)"
        ) from None
