"""A folder for what a process needs until it ends; the next process removes what one that was killed has left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType

PREFIX = "veltair-scratch-"


class ScratchFolder:
    """A new folder among the system's temporary files, for this user alone.

    It is locked as long as it is used. A compile can write hundreds of megabytes and be killed for want of memory, so
    whoever makes a folder first removes those of this user that nobody has locked. ::

        with ScratchFolder("compile") as folder:  # a Path
            ...

    purpose: part of its name, which tells a person who looks there what it was for.

    Raises OSError where it cannot be made.
    """

    def __init__(self, purpose: str) -> None:
        parent = Path(tempfile.gettempdir())
        _remove_abandoned(parent)
        while True:
            self.path = parent / f"{PREFIX}{purpose}-{secrets.token_hex(16)}"  # a name that no other folder has
            self._locks: list[int] = []
            self._end = weakref.finalize(self, _remove, self.path, self._locks)  # first: a signal may end what follows
            self.path.mkdir(0o700)
            descriptor = _locked(self.path, fcntl.LOCK_SH)
            if descriptor is not None:
                self._locks.append(descriptor)
                break
            self._end.detach()  # another process found it before it was locked, and removed it

    def close(self) -> None:
        """Remove it, if it is still there, also where a signal comes meanwhile."""
        try:
            self._end()
        except BaseException:
            _remove(self.path, self._locks)
            raise

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _locked(folder: Path, kind: int) -> int | None:
    """A descriptor that holds the lock, or None where the folder is gone by then."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, kind)
        if os.path.samestat(os.fstat(descriptor), folder.stat(follow_symlinks=False)):
            return descriptor
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _remove(folder: Path, locks: list[int]) -> None:
    """`locks`: descriptors that hold them; none is left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    while locks:
        os.close(locks.pop())


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or gone already
            if folder.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            descriptor = _locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is not None:
                _remove(folder, [descriptor])
