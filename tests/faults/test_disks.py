"""Disks that are full or take no writes: of logs, of artifacts that are compiled, of temporary files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from onnx_protos import model, node, port
from running_daemon import Daemon, configuration, running, serve, until
from running_engine import WAIT_S
from traffic import first_answer, nothing_left, processes, traffic, whole

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
DISK_BYTES = 1 << 18


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KB. The test is skipped, and says so, where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no program mounts a disk here")
    if done.returncode:
        pytest.skip(f"no disk to fill: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte free."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            return folder / "ballast"
    raise AssertionError("the disk has no end")


def remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def test_a_full_disk_under_the_event_log(rounds: Rounds, artifacts: Path, tmp_path: Path, disk: Path) -> None:
    """The event log's disk is full: serving goes on without it, and so does an engine that starts then."""
    text = configuration(artifacts, "mlp", event_log=str(disk / "events.jsonl"))
    for _ in rounds(quick=1, full=20):
        with nothing_left(running(tmp_path, text)) as daemon:
            with traffic(daemon) as asking:
                until("the log to say so", lambda: "nothing more is logged" in (tmp_path / "log").read_text())
                asking.served(200)
                assert set(asking.outcomes) == {"right"}, asking.outcomes
                before = processes(daemon)
                before["engine"][0].kill()
                until("all workers", lambda d=daemon, b=before: whole(d, b))
                asking.served(200)
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes
        for file in disk.iterdir():
            file.unlink()


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_daemon_whose_disks_take_nothing(
    rounds: Rounds, artifacts: Path, tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The disk of the log and of temporary files is full or read-only: the daemon starts, serves, heals and drains."""
    monkeypatch.setenv("TMPDIR", str(disk))
    for _ in rounds(quick=int(how == "full"), full=20):
        with ((disk if how == "full" else tmp_path) / "log").open("w") as log:  # a file that is open is not read-only
            ballast = fill(disk)
            if how == "read-only":
                remount(disk, "ro")
            process = serve(tmp_path, configuration(artifacts, "mlp"), log)
        assert process.stdout is not None
        with process.stdout:
            where = json.loads(process.stdout.readline())
            daemon = Daemon(process, where["http"], where["grpc"])
            try:
                before = processes(daemon)
                with traffic(daemon) as asking:
                    asking.served(50)
                    before["worker"][0].kill()
                    asking.served(50)
                    until("all workers", lambda d=daemon, b=before: whole(d, b))
                assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes
                process.send_signal(signal.SIGTERM)
                assert process.wait(WAIT_S) == 0
            finally:
                process.kill()
                process.wait()
        if how == "read-only":
            remount(disk, "rw")
        ballast.unlink()


@pytest.mark.parametrize(
    "where", ["--out", "--out read-only", "TMPDIR", "VELTAIR_CACHE", "VELTAIR_CACHE read-only", "--dump"]
)
def test_a_compile_on_a_full_disk(rounds: Rounds, tmp_path: Path, disk: Path, where: str) -> None:
    """An artifact is compiled where the disk is full or read-only: one line, exit code 2, and no half of it is left.

    Where that is the cache's disk alone, the artifact is there all the same, and one line says what is not kept.
    """
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((256, 512), dtype=np.float32), "w")  # twice the disk
    proto = model([node("MatMul", "x w", "y")], [port("x", (2, 256))], [port("y", (2, 512))], [weights])
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    out = disk / "out" if where.startswith("--out") else tmp_path / "out"
    command = [sys.executable, "-m", "veltair.cli", "compile", str(tmp_path / "model.onnx"), "--out", str(out)]
    command += ["--trials", "0", "--levels", "model", "--json"]
    own = {name: str(tmp_path / name.lower()) for name in ("VELTAIR_CACHE", "TMPDIR")}
    for folder in own.values():
        Path(folder).mkdir(exist_ok=True)
    if where == "--dump":
        command += ["--dump", str(disk / "dump")]
    if (kind := where.split()[0]) in own:
        own[kind] = str(disk)
    for _ in rounds(quick=int(not where.startswith(("TMPDIR", "--dump"))), full=10):
        ballast = fill(disk) if where != "--out" else None
        if where.endswith("read-only"):
            remount(disk, "ro")
        before = sorted(disk.rglob("*veltair*"))
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=10 * WAIT_S)
        if kind in own and (done.returncode == 0 or kind == "VELTAIR_CACHE"):
            assert done.returncode == 0, done.stderr
            said = [line for line in done.stderr.splitlines() if "not kept" in line]
            assert len(said) == (kind == "VELTAIR_CACHE"), done.stderr
            assert all("No space left" in line or "Read-only" in line for line in said)
            shutil.rmtree(out)
        else:
            assert done.returncode == 2, done.stderr
            [line] = done.stderr.splitlines()
            assert line.startswith("veltair compile: ") and ("No space left" in line or "Read-only" in line), line
            assert not out.exists()
        assert sorted(disk.rglob("*veltair*")) == before
        left = [*(tmp_path / "tmpdir").glob("*veltair*"), *tmp_path.glob(".out*"), *disk.glob("*out*")]
        assert not left
        if where.endswith("read-only"):
            remount(disk, "rw")
        if ballast is not None:
            ballast.unlink()


def test_what_was_served_before_the_disk_was_full(rounds: Rounds, artifacts: Path, tmp_path: Path, disk: Path) -> None:
    """A model is copied onto a full disk and loaded: it is refused, and the one before serves bit by bit as before."""
    repository = tmp_path / "models"
    (repository / "mlp").mkdir(parents=True)
    subprocess.run(["cp", "-r", str(artifacts / "mlp"), str(repository / "mlp" / "1")], check=True)
    text = configuration(tmp_path, repository=str(repository), model_control=True)
    with running(tmp_path, text) as daemon:
        expected = first_answer(daemon)
        for _ in rounds(quick=1, full=20):
            ballast = fill(disk)
            os.truncate(ballast, ballast.stat().st_size - (8 << 10))
            subprocess.run(
                ["cp", "-r", str(artifacts / "mlp"), str(disk / "2")], check=False, stderr=subprocess.DEVNULL
            )
            (repository / "mlp" / "2").symlink_to(disk / "2")
            with traffic(daemon, expected) as asking:
                command = ["curl", "-s", "-d", "{}", f"http://{daemon.http}/v2/repository/models/mlp/load"]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                assert "mlp is not loaded" in done.stdout, done.stdout
                asking.served(50)
            assert set(asking.outcomes) == {"right"}, asking.outcomes
            (repository / "mlp" / "2").unlink()
            subprocess.run(["rm", "-r", str(disk / "2"), str(ballast)], check=True)
