"""Artifacts in sealed memory: what was checked, whatever becomes of the folder, and only what nobody else may write."""

from __future__ import annotations

import errno
import fcntl
import grp
import mmap
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from example_artifact import written

from veltair.errors import ArtifactError
from veltair.profiles.artifact import sealed_artifact
from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS, load_artifact
from veltair.profiles.artifact.sealed_artifact import SealedFiles, open_sealed, seal_artifact

ROOT_ALONE = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir(mode=0o755)
    written(path)
    for file in path.iterdir():
        file.chmod(0o644)
    return path


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def contents(files: SealedFiles) -> list[bytes]:
    return [os.pread(file, os.fstat(file).st_size, 0) for file in files]


def test_it_holds_what_was_checked_whatever_becomes_of_the_folder(folder: Path) -> None:
    before, count = [(folder / name).read_bytes() for name in (MANIFEST, KERNELS, WEIGHTS)], descriptors()
    artifact = seal_artifact(folder)
    on_disk = load_artifact(folder)
    assert (artifact.digest, artifact.manifest) == (on_disk.digest, on_disk.manifest)
    for name in (MANIFEST, KERNELS, WEIGHTS):
        (folder / name).write_bytes(b"other")
    assert contents(artifact.files) == before
    artifact.files.close()
    assert descriptors() == count


def test_nobody_can_change_it(folder: Path) -> None:
    artifact = seal_artifact(folder)
    for file in artifact.files:
        for change in (
            lambda file=file: os.write(file, b"x"),
            lambda file=file: os.pwrite(file, b"x", 0),
            lambda file=file: os.truncate(file, 1),
            lambda file=file: os.truncate(file, 1 << 20),
            lambda file=file: fcntl.fcntl(file, fcntl.F_ADD_SEALS, 0),
        ):
            with pytest.raises(PermissionError):
                change()
    artifact.files.close()


@pytest.mark.parametrize("ends", [True, False])
def test_what_the_system_uses_for_a_moment_is_sealed_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """A mapping that can be written stands for the system's own use, which nobody can order."""
    monkeypatch.setattr(sealed_artifact, "SEAL_ATTEMPTS", 3)
    monkeypatch.setattr(sealed_artifact, "SEAL_PAUSE_S", 0.0)
    add_seals, in_use, refused, count = fcntl.fcntl, list[mmap.mmap](), list[int](), descriptors()

    def called(file: int, command: int, argument: int) -> int:
        if not refused and not in_use:
            in_use.append(mmap.mmap(file, 0))
        try:
            return add_seals(file, command, argument)
        except OSError as error:
            refused.append(error.errno or 0)
            if ends:
                in_use.pop().close()
            raise

    monkeypatch.setattr(fcntl, "fcntl", called)
    if ends:
        artifact = seal_artifact(folder)
        assert refused == [errno.EBUSY]
        artifact.files.close()
    else:
        with pytest.raises(ArtifactError, match=r"manifest\.json: its copy in memory cannot be sealed"):
            seal_artifact(folder)
        assert refused == [errno.EBUSY] * 3
        in_use.pop().close()
    assert descriptors() == count


def test_what_is_held_already_is_checked_and_not_copied(folder: Path) -> None:
    artifact = seal_artifact(folder)
    held = {artifact.digest: artifact.files}
    count = descriptors()
    assert seal_artifact(folder, held).files is artifact.files
    (folder / WEIGHTS).write_bytes(bytes(127) + b"x")
    with pytest.raises(ArtifactError, match=r"weights\.bin: truncated or altered"):
        seal_artifact(folder, held)
    assert descriptors() == count
    artifact.files.close()


def test_large_files_are_copied_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_artifact, "PIECE_BYTES", 50)  # 128 bytes of weights
    artifact = seal_artifact(folder)
    assert contents(artifact.files)[2] == bytes(128)
    artifact.files.close()


def test_another_process_opens_it_by_its_descriptors(folder: Path) -> None:
    artifact = seal_artifact(folder)
    twin = open_sealed(folder, artifact.digest, [os.dup(file) for file in artifact.files])
    assert (twin.manifest, twin.digest) == (artifact.manifest, artifact.digest)
    artifact.files.close()
    assert Path(twin.library).read_bytes() == b"code"
    weights = twin.open_weights()
    twin.files.close()
    assert os.fstat(weights).st_size == 128
    os.close(weights)


def test_descriptors_that_did_not_come_along(folder: Path) -> None:
    artifact = seal_artifact(folder)
    count = descriptors()
    with pytest.raises(ArtifactError, match="2 of its descriptors came along; are too many files open"):
        open_sealed(folder, artifact.digest, [os.dup(file) for file in artifact.files[:2]])
    assert descriptors() == count
    artifact.files.close()


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def pipe(name: str) -> Callable[[Path], object]:
    return lambda folder: ((folder / name).unlink(), os.mkfifo(folder / name, 0o600))


def flip(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1] + b"?")


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (remove(MANIFEST), "no model artifact there .No such file"),
        (remove(KERNELS), r"kernels\.so: cannot be read .No such file"),
        (flip(MANIFEST), r"manifest\.json: JSON is malformed"),
        (flip(KERNELS), r"kernels\.so: truncated or altered"),
        (flip(WEIGHTS), r"weights\.bin: truncated or altered"),
        (lambda folder: os.truncate(folder / WEIGHTS, 0), r"weights\.bin: truncated or altered"),
        (pipe(WEIGHTS), r"weights\.bin: expected a file"),
        (pipe(MANIFEST), r"manifest\.json: expected a file"),
    ],
)
def test_what_is_refused_leaves_nothing_open(folder: Path, alter: Callable[[Path], object], says: str) -> None:
    alter(folder)
    count = descriptors()
    with pytest.raises(ArtifactError, match=says):
        seal_artifact(folder)
    assert descriptors() == count


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, says in (("none", "No such file"), ("file", "Not a directory")):
        with pytest.raises(ArtifactError, match=f"no model artifact there .{says}"):
            seal_artifact(tmp_path / name)


def test_links_are_followed_to_files_of_our_own(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (folder / WEIGHTS).rename(store / "blob")
    (folder / WEIGHTS).symlink_to(store / "blob")
    (tmp_path / "current").symlink_to(folder)
    seal_artifact(tmp_path / "current").files.close()
    (store / "blob").chmod(0o666)
    with pytest.raises(ArtifactError, match=r"weights\.bin: anybody may write it"):
        seal_artifact(tmp_path / "current")


@pytest.mark.parametrize("name", [".", MANIFEST, KERNELS, WEIGHTS])
def test_what_anybody_may_write_is_refused(folder: Path, name: str) -> None:
    (folder / name).chmod(0o757 if name == "." else 0o646)
    owner = pwd.getpwuid(os.geteuid()).pw_name
    says = rf"{folder / name}: anybody may write it \(it is {owner}:\S+ 0..[67]\); expected root.* as its owner"
    with pytest.raises(ArtifactError, match=says):
        seal_artifact(folder)


@ROOT_ALONE
@pytest.mark.parametrize("name", [".", MANIFEST, KERNELS, WEIGHTS])
def test_what_belongs_to_somebody_else_is_refused(folder: Path, name: str) -> None:
    os.chown(folder / name, NOBODY, -1)
    with pytest.raises(ArtifactError, match=rf"{folder / name}: belongs to somebody else \(it is nobody:root 0...\)"):
        seal_artifact(folder)


@ROOT_ALONE
def test_what_a_foreign_group_may_write_is_refused(folder: Path) -> None:
    os.chown(folder / KERNELS, 0, NOBODY)
    seal_artifact(folder).files.close()
    (folder / KERNELS).chmod(0o664)
    with pytest.raises(ArtifactError, match=r"kernels\.so: its group may write it \(it is root:nogroup 0664\)"):
        seal_artifact(folder)


@ROOT_ALONE
def test_the_server_serves_what_is_its_own_or_roots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    seal_artifact(folder).files.close()  # root's
    os.chown(folder / WEIGHTS, NOBODY, -1)
    seal_artifact(folder).files.close()
    os.chown(folder / WEIGHTS, 1234, 1234)
    with pytest.raises(ArtifactError, match=r"it is 1234:1234 0644.; expected root or nobody as its owner"):
        seal_artifact(folder)


USERS = {0: "root", 1000: "alice", 2000: "bob"}
GROUPS = {
    0: ("root", []),
    1000: ("alice", []),
    2000: ("bob", ["bob", "eve"]),
    100: ("users", []),
    3000: ("team", ["alice"]),
    5000: ("five", []),
}


@ROOT_ALONE
@pytest.mark.parametrize(
    ("user", "group", "private"),
    [
        (1000, 1000, True),  # umask 002 with a private group
        (2000, 2000, False),  # it has another member
        (1000, 100, False),  # everybody's primary group, which lists nobody
        (1000, 3000, False),  # others may join
        (1000, 0, True),  # root's own
        (4000, 4000, True),  # a container's user without any name
        (4000, 4001, False),
        (1000, 4000, False),
        (5000, 5000, True),  # the group alone has a name
        (5000, 3000, False),
    ],
)
def test_a_group_may_write_where_it_is_private(
    folder: Path, monkeypatch: pytest.MonkeyPatch, user: int, group: int, private: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=USERS[uid]))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=GROUPS[gid][0], gr_mem=GROUPS[gid][1]))
    os.chown(folder / WEIGHTS, user, group)
    (folder / WEIGHTS).chmod(0o664)
    if private:
        seal_artifact(folder).files.close()
    else:
        with pytest.raises(ArtifactError, match=r"weights\.bin: its group may write it"):
            seal_artifact(folder)
