"""Memory in huge pages of 2 MB.

With small pages, a look-up in a large table waits for the translation of its page as long as for its row, and so does
each row of activations that lie far apart. Served weights lie in memory that all workers share (`SealedArtifact`), and
the kernel collapses it to pages of 2 MB when asked (Linux 6.1 on, whatever `shmem_enabled` says). It does so too for
files on tmpfs and, with large folios, on ext4, xfs and btrfs.
Transparent huge pages must not be switched off ("never").
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 2 << 20
PIECE_BYTES = 2 * PAGE_BYTES  # that are mapped or locked before a pause: about a millisecond of work
_POPULATE_READ, _COLLAPSE = 22, 25  # madvise: Linux 5.14, 6.1
_FIXED, _FAILED = 0x10, ctypes.c_void_p(-1).value  # of mmap


def map_memory(descriptor: int, *, writable: bool = True, pause: Callable[[], None] | None = None) -> NDArray[np.uint8]:
    """The bytes of a file or memfd, entered into this process's page tables at once, in large pages where the kernel
    has them. The descriptor may be closed afterwards.

    A write makes a copy of the page that is private to this process; without `writable` it ends the process.
    With `pause`, which is called after each, the memory is entered in pieces.
    """
    size = os.fstat(descriptor).st_size
    if not size:
        return np.empty(0, np.uint8)
    libc = _memory_functions()
    # Space for the mapping to begin at a large page; not every file system looks for such a place by itself.
    space = libc.mmap(None, size + PAGE_BYTES, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    address = None if space == _FAILED else -(-space // PAGE_BYTES) * PAGE_BYTES
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    begin = libc.mmap(address, size, protection, mmap.MAP_PRIVATE | (_FIXED if address else 0), descriptor, 0)
    _require(begin)
    # Each is advice: a kernel that is too old refuses, and pages come one by one, or stay small.
    libc.madvise(begin, size, mmap.MADV_HUGEPAGE)
    for at, length in pieces(size, pause):
        for advice in (_POPULATE_READ, _COLLAPSE):
            libc.madvise(begin + at, length, advice)
    return _bytes_at(begin, size, (space, size + PAGE_BYTES) if address else (begin, size))


def map_part(descriptor: int, offset: int, size: int, behind: int) -> NDArray[np.uint8]:
    """`size` bytes of a file from `offset` on, read-only and all present, with `behind` readable bytes after them: the
    file's own, or zeros."""
    if not size:
        return np.empty(0, np.uint8)
    libc, skip = _memory_functions(), offset % mmap.PAGESIZE
    whole, private = skip + size + behind, mmap.MAP_PRIVATE
    space = libc.mmap(None, whole, mmap.PROT_READ, private | mmap.MAP_ANONYMOUS, -1, 0)
    _require(space)
    part = _bytes_at(space + skip, size, (space, whole))
    flags = private | _FIXED | mmap.MAP_POPULATE
    _require(libc.mmap(space, skip + size, mmap.PROT_READ, flags, descriptor, offset - skip))
    return part


def _memory_functions() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _require(address: int | None) -> None:
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _bytes_at(address: int, size: int, mapping: tuple[int, int]) -> NDArray[np.uint8]:
    """Bytes of a mapping (its begin and length), which ends with the last array of them."""
    memory = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(memory, _memory_functions().munmap, *mapping)
    return np.frombuffer(memoryview(memory), np.uint8)


def pieces(size: int, pause: Callable[[], None] | None) -> Iterator[tuple[int, int]]:
    """Where each piece of memory begins, and its size; all of it where there is no `pause`, which is called after each.

    >>> list(pieces(9 << 20, lambda: print("pause")))
    pause
    pause
    pause
    [(0, 4194304), (4194304, 4194304), (8388608, 1048576)]
    >>> list(pieces(9 << 20, None))
    [(0, 9437184)]
    """
    step = PIECE_BYTES if pause else size
    for at in range(0, size, step):
        yield at, min(step, size - at)
        if pause:
            pause()


def zeroed_memory(size: int) -> mmap.mmap:
    """Memory of this process alone, in large pages from one page's size on. Pages that are never written cost none."""
    large = size >= PAGE_BYTES
    # A mapping of whole large pages begins at one.
    whole = -(-size // PAGE_BYTES) * PAGE_BYTES if large else size
    memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def huge_page_bytes(memory: NDArray[Any]) -> int:
    """The bytes of a mapping that lie in huge pages, by `/proc/self/smaps`."""
    found, inside = 0, False
    with Path("/proc/self/smaps").open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            word, *rest = line.split()
            if "-" in word and not word.endswith(":"):
                first, last = (int(part, 16) for part in word.split("-"))
                inside = first <= memory.ctypes.data < last
            elif inside and word in ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"):
                found += int(rest[0]) * 1024
    return found


def has_huge_pages() -> bool:
    """Whether memory that processes share, as weights are, comes in huge pages, tried with 4 MB of it."""
    descriptor = os.memfd_create("veltair-pages", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, 2 * PAGE_BYTES)
        return huge_page_bytes(map_memory(descriptor)) >= PAGE_BYTES
    finally:
        os.close(descriptor)
