"""Workers that say by their channels what no worker says: each costs itself alone."""

from __future__ import annotations

import ctypes
import os
import random
import socket
from pathlib import Path

import msgspec
import psutil
import pytest
from lending_daemon import Burst, costs_a_worker_alone, engine, lend_spin, serving, takes_spin, whole
from running_daemon import until
from traffic import processes

from veltair.server.ipc import messages as m

pytestmark = pytest.mark.slow

_PIDFD_GETFD = 438  # the same number in all architectures


def say(worker: psutil.Process, packet: bytes) -> None:
    """As the worker does: by a duplicate of its socket."""
    pidfd, own = os.pidfd_open(worker.pid), list[socket.socket]()
    try:
        for descriptor in list(Path(f"/proc/{worker.pid}/fd").iterdir()):
            if str(descriptor.readlink()).startswith("socket:"):
                copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, int(descriptor.name), 0)
                if copy < 0:
                    pytest.skip(f"another process's descriptors cannot be had: {os.strerror(ctypes.get_errno())}")
                own.append(socket.socket(fileno=copy))
        for each in own:
            each.send(packet)
    finally:
        for each in own:
            each.close()
        os.close(pidfd)


@pytest.mark.parametrize(
    "packet",
    [
        b"\xc1",
        random.Random(0).randbytes(64),
        msgspec.msgpack.encode(m.KernelFailed(1 << 40, "no", claimed_by=(99, 99))),
        msgspec.msgpack.encode(m.CoresChanged(1 << 40, 0, (0,), 1)),
        msgspec.msgpack.encode(m.ModelsLoaded()),
        msgspec.msgpack.encode(m.ModelUnloaded(0)),
        msgspec.msgpack.encode(m.ModelFailed(0, "ArtifactError", "no")),
        msgspec.msgpack.encode(m.StartFailed("ArtifactError", "no")),
    ],
    ids=["no message", "bytes", "failure", "cores", "ready", "unloaded", "model failed", "start failed"],
)
def test_a_worker_that_says_nonsense_costs_itself_alone(artifacts: Path, tmp_path: Path, packet: bytes) -> None:
    with serving(artifacts, tmp_path, policy="veltair") as (daemon, client):
        before, deaths = engine(daemon), daemon.metric("veltair_worker_deaths_total")
        lend_spin(client)
        burst = Burst(client, list(range(20)))
        say(processes(daemon)["worker"][0], packet)
        burst.right()
        until("its death", lambda: daemon.metric("veltair_worker_deaths_total") == deaths + 1)
        until("queries to be taken", lambda: takes_spin(client))
        whole(daemon, client)
        costs_a_worker_alone(daemon, before, tmp_path / "log")
        assert "it told nonsense" in (tmp_path / "log").read_text()
