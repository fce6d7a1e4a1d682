"""Reads a whole file that may turn out to be something else, in bounded time and memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """The content. Raises OSError, also for what is no regular file, and for one of more bytes.

    A pipe would have its reader wait for a writer, and devices have no end.

    >>> read_regular_file(Path("/dev/zero"), 1000)
    Traceback (most recent call last):
    ...
    OSError: [Errno 22] expected a file: '/dev/zero'
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "expected a file", str(path))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"expected at most {most_bytes} bytes", str(path))
    return content
