"""Weights locked in memory: a system without enough of it takes back first what was not looked at for a while.

One process locks a mapping, and its pages stay for every process that maps the same memory.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from veltair.profiles.runtime.huge_pages import map_memory, pieces

log = logging.getLogger(__name__)


@contextmanager
def locked_in_memory(descriptor: int, what: str, pause: Callable[[], None] | None = None) -> Iterator[bool]:
    """Lock the pages of a file or memfd within the block, in large pages where there are such; with
    `pause`, which is called after each, in pieces.

    False, and a warning that says `what` is not locked, where the system refuses.
    """
    memory = map_memory(descriptor, writable=False, pause=pause)  # to lock what may be written is to copy it
    if not memory.size:
        yield True
        return
    libc = ctypes.CDLL(None, use_errno=True)
    address, length = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.size)
    begin = memory.ctypes.data
    held = all(
        libc.mlock(ctypes.c_void_p(begin + at), ctypes.c_size_t(part)) == 0 for at, part in pieces(memory.size, pause)
    )
    if not held:
        why = os.strerror(ctypes.get_errno())
        log.warning("%s: %d MB are not locked in memory: %s (ulimit -l)", what, memory.size >> 20, why)
        libc.munlock(address, length)  # pieces before the one that was refused
    try:
        yield held
    finally:
        if held:
            libc.munlock(address, length)
