"""The folder of what compiles keep for the next one: entries by key, of bounded size, each with a digest.

An entry is a file `KIND/KEY`: a header, the sha256 of key and content, then the content. It is written to a temporary
file and renamed, so several processes may read and write at once. What is torn, altered or under another's name does
not have its digest, and counts as absent. Whoever can write the folder decides what code is linked into artifacts:
folder and entries must be the user's own, as an artifact's files must (`artifact.file_owners`).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from veltair.errors import ConfigError
from veltair.machine.whole_file import TEMPORARY, whole_file
from veltair.profiles.artifact.file_owners import require_own_file

KINDS = ("objects", "timings", "versions")
HEADER = b"veltair cache 1\n"
LIMIT = "limit"  # the file that holds the size limit where the user has set one
DEFAULT_LIMIT_BYTES = 1 << 30
KEPT_SHARE = 0.9  # of the limit, of what is left when the oldest entries go: the next entry does not scan again
PAGE = 4096  # bytes; what a small file takes at least
# Nothing else is counted or removed: the path may by mistake be that of a folder with other things.
_ENTRY = re.compile(rf"[0-9a-f]{{64}}|{re.escape(TEMPORARY)}\w+")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def cache_path() -> Path:
    """`$VELTAIR_CACHE`, by default `$XDG_CACHE_HOME/veltair`."""
    if own := os.environ.get("VELTAIR_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "veltair"


def parse_size(text: str) -> int:
    """Bytes of a size such as "500M" or "2GiB". Raises ConfigError for anything else.

    >>> parse_size("1.5G"), parse_size("500 MiB"), parse_size("4096")
    (1610612736, 524288000, 4096)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.I | re.A)
    if found is None or len(text) > 20:
        raise ConfigError(f"expected a size such as 500M or 2G, found {text!r}")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True, slots=True)
class KindUsage:
    """How much there is of one kind of entry.

    >>> KindUsage(entries=12, bytes=65536).entries
    12
    """

    entries: int
    bytes: int  # on the disk


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    bytes: int
    used_ns: int


class CacheFolder:
    """Entries by kind and key. ::

    folder = CacheFolder(cache_path())
    folder.write("objects", key, content)
    assert folder.read("objects", key) == content  # and is the most recently used one from now on

    Reading and writing raise OSError for what the system refuses, and ArtifactError for a folder or file that is not
    the user's own, or that others may write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes: int | None = None  # of all entries, once known; other processes' later entries are not counted

    def read(self, kind: str, key: str) -> bytes | None:
        """The content of an entry; None where there is none that is whole."""
        path = self.path / kind / key
        try:
            self._check_folder(path.parent)
            # A device or a pipe in its place must not be waited for.
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(file, "rb") as opened:
            require_own_file(file, path)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            raw = opened.read()
            start = len(HEADER) + hashlib.sha256().digest_size
            content = raw[start:]
            if raw[:start] != _head(kind, key, content):
                return None
            with suppress(OSError):  # a read-only folder still serves
                os.utime(file)
        return content

    def write(self, kind: str, key: str, content: bytes) -> None:
        """Keep an entry, in place of the one of this key; the least recently used ones make room for it."""
        limit = self.limit_bytes
        size = _disk_bytes(len(content) + PAGE)
        if size > limit:
            return
        folder = self.path / kind
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._check_folder(folder)
        if self._bytes is None:
            self._bytes = sum(file.bytes for file in self._files())
        if self._bytes + size > limit:
            self._bytes = self._evict(int((limit - size) * KEPT_SHARE))
        try:
            with whole_file(folder / key, mode=0o600) as file:
                file.write(_head(kind, key, content) + content)
        except OSError:
            with suppress(OSError):  # of a full disk, not even folders stay if they are empty
                folder.rmdir()
                self.path.rmdir()
            raise
        self._bytes += size

    def remove(self, kind: str, key: str) -> None:
        """Forget an entry, if it is there."""
        (self.path / kind / key).unlink(missing_ok=True)

    @property
    def limit_bytes(self) -> int:
        """How much all entries may take."""
        try:
            return int((self.path / LIMIT).read_text("ascii"))
        except (OSError, ValueError):
            return DEFAULT_LIMIT_BYTES

    def set_limit(self, limit_bytes: int) -> None:
        """Bound the size from now on; what is above the bound goes."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_folder(self.path)
        (self.path / LIMIT).write_text(f"{limit_bytes}\n", "ascii")
        self._bytes = self._evict(limit_bytes)

    def usage(self) -> dict[str, KindUsage]:
        """What there is, by kind."""
        found = dict.fromkeys(KINDS, KindUsage(0, 0))
        for file in self._files():
            before = found[file.path.parent.name]
            found[file.path.parent.name] = KindUsage(before.entries + 1, before.bytes + file.bytes)
        return found

    def clear(self) -> None:
        """Remove all entries; the size limit stays."""
        for file in self._files():
            file.path.unlink(missing_ok=True)
        self._bytes = 0

    def _evict(self, wanted_bytes: int) -> int:
        """Remove the least recently used entries until so many bytes are left at most; return how many are left."""
        files = sorted(self._files(), key=lambda file: file.used_ns)
        left = sum(file.bytes for file in files)
        for file in files:
            if left <= wanted_bytes:
                break
            file.path.unlink(missing_ok=True)
            left -= file.bytes
        return left

    def _files(self) -> Iterator[_File]:
        """All entries, and temporary files of processes that were killed."""
        for kind in KINDS:
            with suppress(FileNotFoundError), os.scandir(self.path / kind) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # another process may just have removed it
                        if _ENTRY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                            found = entry.stat(follow_symlinks=False)
                            yield _File(Path(entry.path), _disk_bytes(found.st_size), found.st_mtime_ns)

    def _check_folder(self, kind: Path) -> None:
        for path in dict.fromkeys((self.path, kind)):
            # The cache's own path may be a link of the user's; a kind is always a folder.
            follow = 0 if path == self.path else os.O_NOFOLLOW
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow)
            try:
                require_own_file(folder, path)
            finally:
                os.close(folder)


def _head(kind: str, key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{kind}/{key}\n".encode())
    digest.update(content)
    return HEADER + digest.digest()


def _disk_bytes(size: int) -> int:
    return -(-size // PAGE) * PAGE
