"""The folder of entries: whole or absent, bounded, and nobody else's."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from veltair.errors import ArtifactError, ConfigError
from veltair.profiles.cache import cache_folder
from veltair.profiles.cache.cache_folder import PAGE, CacheFolder, KindUsage, cache_path, parse_size


def key(number: int) -> str:
    return hashlib.sha256(f"{number}".encode()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(tmp_path / "cache")


def test_what_was_written_is_read_by_its_own_key_alone(folder: CacheFolder) -> None:
    assert folder.read("objects", key(0)) is None
    folder.write("objects", key(0), b"code")
    folder.write("timings", key(0), b"")
    assert folder.read("objects", key(0)) == b"code"
    assert folder.read("timings", key(0)) == b""
    assert folder.read("objects", key(1)) is folder.read("versions", key(0)) is None
    folder.write("objects", key(0), b"newer")
    assert CacheFolder(folder.path).read("objects", key(0)) == b"newer"
    folder.remove("objects", key(0))
    folder.remove("objects", key(0))
    assert folder.read("objects", key(0)) is None
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "torn": lambda raw: raw[:-1],
    "torn in its head": lambda raw: raw[:20],
    "longer": lambda raw: raw + b"\0",
    "content altered": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "digest altered": lambda raw: raw[:20] + bytes([raw[20] ^ 1]) + raw[21:],
    "of another format": lambda raw: b"veltair cache 2\n" + raw[16:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_absent_and_can_be_replaced(folder: CacheFolder, damage: str) -> None:
    folder.write("objects", key(0), b"code" * 100)
    path = folder.path / "objects" / key(0)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert folder.read("objects", key(0)) is None
    folder.write("objects", key(0), b"code again")
    assert folder.read("objects", key(0)) == b"code again"


def test_an_entry_under_another_name_is_absent(folder: CacheFolder) -> None:
    folder.write("objects", key(0), b"code")
    folder.write("timings", key(2), b"times")
    entry = folder.path / "objects" / key(0)
    entry.rename(entry.with_name(key(1)))
    (folder.path / "timings" / key(2)).rename(entry)
    assert folder.read("objects", key(1)) is folder.read("objects", key(0)) is None


def test_what_is_no_file_is_not_waited_for(folder: CacheFolder, tmp_path: Path) -> None:
    folder.write("objects", key(0), b"code")
    place = folder.path / "objects"
    os.mkfifo(place / key(1), 0o600)
    assert folder.read("objects", key(1)) is None
    (place / key(2)).symlink_to(place / key(0))
    with pytest.raises(OSError, match=r"symbolic links|loop"):
        folder.read("objects", key(2))


@pytest.mark.parametrize("what", ["", "objects", f"objects/{key(0)}"])
@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_what_others_may_write_is_refused(folder: CacheFolder, what: str, mode: int) -> None:
    folder.write("objects", key(0), b"code")
    (folder.path / what).chmod(mode)
    with pytest.raises(ArtifactError, match="anybody may write it"):
        folder.read("objects", key(0))
    if not what.endswith(key(0)):
        with pytest.raises(ArtifactError, match="anybody may write it"):
            folder.write("objects", key(0), b"code")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone gives files away")
@pytest.mark.parametrize("what", ["", "objects", f"objects/{key(0)}"])
def test_what_belongs_to_somebody_else_is_refused(folder: CacheFolder, what: str) -> None:
    folder.write("objects", key(0), b"code")
    os.chown(folder.path / what, 65534, 65534)
    with pytest.raises(ArtifactError, match="belongs to somebody else"):
        folder.read("objects", key(0))


def use(folder: CacheFolder, kind: str, number: int, used_s: int) -> None:
    os.utime(folder.path / kind / key(number), (used_s, used_s))


def test_the_least_recently_used_entries_make_room(folder: CacheFolder) -> None:
    folder.set_limit(12 * 2 * PAGE)
    for number in range(10):
        folder.write("objects", key(number), bytes(PAGE))  # two pages each with its head
        use(folder, "objects", number, number + 1)
    assert folder.read("objects", key(0)) is not None  # now it is the most recently used one
    for number in range(10, 20):
        folder.write("versions", key(number), bytes(PAGE))
        use(folder, "versions", number, number + 1)
        assert sum(kind.bytes for kind in folder.usage().values()) <= folder.limit_bytes
    assert [n for n in range(10) if folder.read("objects", key(n)) is not None][:1] == [0]
    assert folder.read("objects", key(1)) is None
    assert all(folder.read("versions", key(n)) is not None for n in range(15, 20))


def test_what_is_larger_than_the_limit_is_not_kept(folder: CacheFolder) -> None:
    folder.set_limit(4 * PAGE)
    folder.write("objects", key(0), b"small")
    folder.write("objects", key(1), bytes(5 * PAGE))
    assert folder.read("objects", key(1)) is None
    assert folder.read("objects", key(0)) == b"small"


def test_the_limit_is_kept_in_the_folder_and_bounds_what_is_there(folder: CacheFolder) -> None:
    assert folder.limit_bytes == cache_folder.DEFAULT_LIMIT_BYTES
    for number in range(8):
        folder.write("timings", key(number), b"times")
    assert folder.usage() == {
        "objects": KindUsage(0, 0),
        "timings": KindUsage(8, 8 * PAGE),
        "versions": KindUsage(0, 0),
    }
    folder.set_limit(3 * PAGE)
    other = CacheFolder(folder.path)
    assert (other.limit_bytes, other.usage()["timings"].entries) == (3 * PAGE, 3)
    other.clear()
    assert (other.limit_bytes, other.usage()["timings"].entries) == (3 * PAGE, 0)
    (folder.path / "limit").write_text("much")
    assert other.limit_bytes == cache_folder.DEFAULT_LIMIT_BYTES


def test_nothing_but_entries_is_removed(folder: CacheFolder) -> None:
    """The path may by mistake be that of a folder with other things."""
    folder.write("objects", key(0), b"code")
    dear = [folder.path / "notes.txt", folder.path / "objects" / "notes.txt", folder.path / "own" / key(1)]
    dear[2].parent.mkdir()
    for path in dear:
        path.write_text("dear")
    (folder.path / "objects" / ".veltair-torn").write_bytes(b"of a process that was killed")
    folder.set_limit(0)
    folder.clear()
    assert sorted(path for path in folder.path.rglob("*") if path.is_file()) == sorted([*dear, folder.path / "limit"])


def test_a_full_disk_leaves_nothing_behind(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(OSError, match="No space"):
            folder.write("objects", key(0), b"code")
    assert not folder.path.exists()
    folder.write("objects", key(0), b"code")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(OSError, match="No space"):
            folder.write("objects", key(1), b"code")
    assert [path.name for path in (folder.path / "objects").iterdir()] == [key(0)]


def test_many_write_and_read_the_same_entries_at_once(folder: CacheFolder) -> None:
    """Each with a view of its own, as processes have: what is read is whole, whoever wrote it."""
    folder.set_limit(20 * 2 * PAGE)

    def work(who: int) -> list[bytes]:
        own, seen = CacheFolder(folder.path), []
        for number in range(60):
            own.write("objects", key(number % 30), f"{number % 30} ".encode() * 500)
            content = own.read("objects", key((number + who) % 30))
            seen += [] if content is None else [content.split()[0] + b"/" + f"{(number + who) % 30}".encode()]
        return seen

    with ThreadPoolExecutor(4) as pool:
        for seen in pool.map(work, range(4)):
            assert all(left == right for left, right in (pair.split(b"/") for pair in seen))
    assert not list(folder.path.rglob(".veltair-*"))


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VELTAIR_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_path() == tmp_path / "own"
    monkeypatch.delenv("VELTAIR_CACHE")
    assert cache_path() == tmp_path / "xdg" / "veltair"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_path() == tmp_path / ".cache" / "veltair"


@pytest.mark.parametrize("text", ["", "G", "-1", "1 X", "1e9", "ten", "1G2", "9" * 30, "٣G"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a size such as"):
        parse_size(text)
