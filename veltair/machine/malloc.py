"""Settings of the C library's `malloc`, for processes that pass tensors on."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>
_MMAP_THRESHOLD_BYTES = 32 << 20  # glibc accepts no larger threshold
_TRIM_THRESHOLD_BYTES = 256 << 20  # of freed memory that is kept


def return_free_memory() -> None:
    """Have glibc give all memory that is free back to the system. Other C libraries are left alone."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def reuse_message_memory() -> None:
    """Let glibc keep the memory of messages, in one heap for all threads. Call it before other threads start.

    By default glibc returns the memory of each tensor to the system, so that the next tensor of 0.6 MB begins with 150
    page faults in each process that it passes. Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in (
            (_M_ARENA_MAX, 1),
            (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
            (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES),
        ):
            mallopt(option, value)
