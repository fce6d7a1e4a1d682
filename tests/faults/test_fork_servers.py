"""The processes that engines and workers are forked from are killed or stopped: they are replaced, or not needed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from running_daemon import Daemon, configuration, running, until
from traffic import nothing_left, processes, traffic, whole

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]


def fork_server(daemon: Daemon, victim: str) -> int:
    """The id of the one that engines, or workers, come from: a child of the front, or of the engine."""
    [engine] = processes(daemon)["engine"]
    parent = daemon.process.pid if victim == "engine" else engine.pid
    [found] = [process for process in processes(daemon)["fork server"] if process.ppid() == parent]
    return int(found.pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=lambda how: how.name)
@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_a_fork_server_that_is_gone_or_stopped(
    rounds: Rounds, artifacts: Path, tmp_path: Path, victim: str, how: signal.Signals
) -> None:
    """What engines or workers are forked from is killed or stopped: nobody is lost, and who dies next is replaced."""
    quick = (victim, how) in (("worker", signal.SIGSTOP), ("engine", signal.SIGKILL))
    often = rounds(quick=int(quick), full=20)
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp"))) as daemon:
        for _ in often:
            before = processes(daemon)
            with traffic(daemon) as asking:
                asking.served(50)
                os.kill(fork_server(daemon, victim), how)
                asking.served(50)
                assert not asking.outcomes.keys() & {"wrong", "lost", "typed"}, asking.outcomes
                before[victim][0].kill()
                until("another", lambda b=before: set(processes(daemon)[victim]) - set(b[victim]))
                until("all workers", lambda b=before: whole(daemon, b))
                asking.served(50)
            assert daemon.status() == 200
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes
            until("both fork servers", lambda: len(processes(daemon)["fork server"]) == 2)
