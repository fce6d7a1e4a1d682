"""Memory in pages of 2 MB: a look-up in a large table else waits for its page's translation as long as for its row, and
rows of activations that lie far apart for one each.

Of weights nothing is copied: workers share the file's pages in memory, which the kernel keeps in pages of 2 MB itself

    on a file system with large folios (ext4 from Linux 6.16 on, xfs, btrfs), if the file was read for such a mapping;
    on tmpfs, if asked to collapse them (Linux 6.1 on, whatever `shmem_enabled` says);
    on others, if built with CONFIG_READ_ONLY_THP_FOR_FS, likewise.

Transparent huge pages must not be switched off ("never").
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 2 << 20
WORTH_BYTES = 64 << 20  # of weights; less is found in the caches that hold translations
ENOUGH = 0.9  # of a file in large pages: what was written in small pieces at its ends stays small
_POPULATE_READ, _COLLAPSE = 22, 25  # madvise: Linux 5.14, 6.1
_FIXED, _FAILED = 0x10, ctypes.c_void_p(-1).value  # of mmap


def mapped(path: Path) -> NDArray[np.uint8]:
    """A file's bytes, entered into this process's page tables at once, in large pages where the kernel takes them.

    A write makes a copy of the page that only this process sees.
    """
    size = path.stat().st_size
    if not size:
        return np.empty(0, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # Room for the file to begin at a large page; not every file system looks for such a place by itself.
    room = libc.mmap(None, size + PAGE_BYTES, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    address = None if room == _FAILED else -(-room // PAGE_BYTES) * PAGE_BYTES
    with path.open("rb") as file:
        flags = mmap.MAP_PRIVATE | (_FIXED if address else 0)
        begin = libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, file.fileno(), 0)
    if begin == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    # Each is advice: a kernel that is too old refuses, and pages come one by one, or stay small.
    for advice in (mmap.MADV_HUGEPAGE, _POPULATE_READ, _COLLAPSE):
        libc.madvise(begin, size, advice)
    memory = (ctypes.c_uint8 * size).from_address(begin)
    whole = (room, size + PAGE_BYTES) if address else (begin, size)
    weakref.finalize(memory, libc.munmap, *whole)
    return np.frombuffer(memoryview(memory), np.uint8)


def zeroed(size: int) -> mmap.mmap:
    """Memory of this process alone, in large pages from one page's size on. Room that is never written costs none."""
    large = size >= PAGE_BYTES
    # A mapping of whole large pages begins at one.
    whole = -(-size // PAGE_BYTES) * PAGE_BYTES if large else size
    memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def large_bytes(memory: NDArray[Any]) -> int:
    """How much of a mapping lies in large pages, by `/proc/self/smaps`."""
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


def settle(path: Path) -> float:
    """Have a large file's pages in memory be large ones, before anyone maps it; the part of it that is.

    Pages stay as they came in, and most came in small, written or read in small pieces: then they are given back and
    read again. Those that another process maps stay.
    """
    size = path.stat().st_size
    if size < WORTH_BYTES:
        return 0.0
    share = large_bytes(mapped(path)) / size
    if share < ENOUGH:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        share = large_bytes(mapped(path)) / size
    return share


def offered(folder: Path) -> bool | None:
    """Whether files of a folder come in large pages: tried with one of 4 MB. None: nothing can be written there."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(os.urandom(2 * PAGE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return large_bytes(mapped(Path(file.name))) >= PAGE_BYTES
    except OSError:
        return None
