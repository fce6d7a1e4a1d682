"""Workers that die or do not start: what it costs, and how they are replaced."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from veltair.server.engine.worker_supervisor import LONGEST_DELAY_S, WorkerSupervisor
from veltair.server.ipc.forks.fork_server import ForkServer
from veltair.server.ipc.messages import LoadModels

pytestmark = pytest.mark.slow


def test_starts_that_fail_are_tried_again_ever_more_rarely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    poll = select.epoll()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    fd = os.memfd_create("tensors")
    supervisor = WorkerSupervisor(poll, 2, fd, LoadModels((), (0,), 1), 4096, 10**10, ForkServer("worker"))
    now_ns, waits = 0, []
    for _ in range(12):
        supervisor.start_missing(now_ns)
        assert not supervisor.all
        wait_s = supervisor.seconds_to_start(now_ns)
        assert wait_s is not None
        failed = supervisor.failed_starts
        supervisor.start_missing(now_ns + round(wait_s * 1e9) - 1)
        assert supervisor.failed_starts == failed, "tried again too early"
        waits.append(wait_s)
        now_ns += round(wait_s * 1e9)
    supervisor.close()
    os.close(fd)
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits[-1] == LONGEST_DELAY_S
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    poll.close()
