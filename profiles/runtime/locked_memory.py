"""Weights locked in memory: a system takes back first those file pages that were not read for a while.

One process locks a mapping of the file, and its pages stay for every process that maps it.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)


@contextmanager
def locked_in_memory(path: Path) -> Iterator[bool]:
    """Lock a file's pages in memory within the block; False, and a line in the log, where the system refuses."""
    size = path.stat().st_size
    if not size:
        yield True
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
        view = np.frombuffer(memory, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address, length = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size)
        held = libc.mlock(address, length) == 0
        if not held:
            log.info("%s: %d MB are not locked in memory: %s", path.name, size >> 20, os.strerror(ctypes.get_errno()))
        try:
            yield held
        finally:
            if held:
                libc.munlock(address, length)
            del view  # a mapping with views cannot be closed
