"""A log that nobody reads: a collector that has stopped, a pager that shows the first page."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from model_versions import broken
from running_daemon import Daemon, configuration, reload, serve, until
from running_engine import WAIT_S
from traffic import nothing_left, processes, traffic, whole

pytestmark = pytest.mark.slow


@contextmanager
def unread(folder: Path, text: str) -> Iterator[Daemon]:
    """A daemon whose log goes into a pipe that is full before it says anything."""
    reading, writing = os.pipe()
    room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while os.write(writing, b"x" * room):
            pass
    os.set_blocking(writing, True)
    with serve(folder, text, writing) as process:
        os.close(writing)
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        try:
            yield Daemon(process, told["http"], told["grpc"])
        except BaseException:
            process.kill()
            raise
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    os.close(reading)


def test_a_log_that_nobody_reads(rounds: Callable[..., range], artifacts: Path, tmp_path: Path) -> None:
    """Nobody reads the log: the daemon starts, serves and drains, who dies is replaced, and models load or say why."""
    models = tmp_path / "models"
    shutil.copytree(artifacts / "mlp", models / "mlp" / "1")
    text = configuration(artifacts, repository=str(models), model_control=True)
    with nothing_left(unread(tmp_path, text)) as daemon:
        for _ in rounds(quick=1, full=20):
            for victim in ("engine", "worker", "loader"):
                before = processes(daemon)
                with traffic(daemon) as asking:
                    asking.served(20)
                    before[victim][0].kill()
                    until("all workers", lambda b=before: whole(daemon, b))
                    until("a load", lambda: load(daemon) == "")  # one that meets a dead loader is to be tried again
                    asking.served(20)
                assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes
            for how, says in (
                ("no symbol", "the model cannot be loaded: AttributeError"),
                ("torn manifest", "manifest.json"),
            ):
                broken(artifacts, models / "mlp" / "2", how)
                assert says in load(daemon)
                shutil.rmtree(models / "mlp" / "2")
            assert reload(daemon) == (200, {"done": []})


def load(daemon: Daemon) -> str:
    """The error, or an empty text."""
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/repository/models/mlp/load", b"{}", WAIT_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return str(json.load(error)["error"])
