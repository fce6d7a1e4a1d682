"""How the processes that pass tensors on ask the C library for memory."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>
_LARGEST_KEPT_BYTES = 32 << 20  # glibc takes no greater threshold
_KEPT_BYTES = 256 << 20  # of freed memory


def reuse_message_memory() -> None:
    """Let glibc keep what messages took, in one heap for all threads; to be called before other threads start.

    By itself it gives each tensor back to the system, so that the next one of 0.6 MB begins with 150 page faults in
    each process that it passes. Another C library is left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in (
            (_M_ARENA_MAX, 1),
            (_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES),
            (_M_TRIM_THRESHOLD, _KEPT_BYTES),
        ):
            mallopt(option, value)
