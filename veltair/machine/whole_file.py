"""Files that are there as a whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".veltair-"  # begins the names of those that are not complete yet


@contextmanager
def whole_file(path: Path, *, new: bool = False, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write, which takes its name when the block ends well, and vanishes otherwise: at an error, on a full
    disk, at a signal.

    new: another file of this name is left alone, as by mode "x".
    mode: permissions, of which the umask takes some away.

    Raises OSError where it cannot be written. ::

        with whole_file(Path("veltair.toml"), new=True) as file:
            file.write(b"[server]")
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected a file name", str(path))
    if new and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    try:
        try:
            with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                yield file
            if new:
                os.link(temporary, path)  # a rename would replace what another process has made meanwhile
            else:
                temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
    finally:  # once more: a signal's exception comes out of any line, also out of the one above
        temporary.unlink(missing_ok=True)
