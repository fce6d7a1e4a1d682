"""Memory in huge pages of 2 MB.

With small pages, a look-up in a large table waits for the translation of its page as long as for its row, and so does
each row of activations that lie far apart. Weights are not copied: workers share the pages of the file in memory, which
the kernel keeps in pages of 2 MB by itself

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
WORTH_BYTES = 64 << 20  # of weights; the caches of page translations cover less
ENOUGH = 0.9  # of a file in large pages: what was written in small pieces at its ends stays small
_POPULATE_READ, _COLLAPSE = 22, 25  # madvise: Linux 5.14, 6.1
_FIXED, _FAILED = 0x10, ctypes.c_void_p(-1).value  # of mmap


def map_file(path: Path) -> NDArray[np.uint8]:
    """A file's bytes, entered into this process's page tables at once, in large pages where the kernel takes them.

    A write makes a copy of the page that is private to this process.
    """
    size = path.stat().st_size
    if not size:
        return np.empty(0, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # Space for the file to begin at a large page; not every file system looks for such a place by itself.
    space = libc.mmap(None, size + PAGE_BYTES, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    address = None if space == _FAILED else -(-space // PAGE_BYTES) * PAGE_BYTES
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
    whole = (space, size + PAGE_BYTES) if address else (begin, size)
    weakref.finalize(memory, libc.munmap, *whole)
    return np.frombuffer(memoryview(memory), np.uint8)


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


def move_to_huge_pages(path: Path) -> float:
    """Bring a large file into memory in huge pages, before any process maps it; the share of it that is in them.

    Pages stay as they were read or written, mostly in small pieces: then they are given back and read again. Pages that
    another process maps stay.
    """
    size = path.stat().st_size
    if size < WORTH_BYTES:
        return 0.0
    share = huge_page_bytes(map_file(path)) / size
    if share < ENOUGH:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        share = huge_page_bytes(map_file(path)) / size
    return share


def has_huge_pages(folder: Path) -> bool | None:
    """Whether files of a folder come in huge pages, tried with one of 4 MB; None where nothing can be written."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(os.urandom(2 * PAGE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return huge_page_bytes(map_file(Path(file.name))) >= PAGE_BYTES
    except OSError:
        return None
