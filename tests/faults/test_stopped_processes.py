"""Processes that live and do nothing: SIGSTOP, which looks like a hang. They are noticed and replaced."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as triton_grpc
from running_daemon import configuration, running, until
from running_engine import WAIT_S, living
from traffic import nothing_left, processes, traffic, whole

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
QUICK = {"hung_block_s": 0.5, "hung_engine_s": 1.5, "model_control": True}


@pytest.mark.parametrize("victims", ["one", "all"])
def test_stopped_workers_are_replaced(
    rounds: Rounds, recovered: Callable[[float], None], artifacts: Path, tmp_path: Path, victims: str
) -> None:
    """Workers are stopped: once their blocks have had their time they are replaced, and each query they had ends with a
    typed error; whoever is left serves."""
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp", **QUICK))) as daemon:
        for _ in rounds(quick=1, full=20):
            before = processes(daemon)
            with traffic(daemon) as asking:
                asking.served(100)
                busiest = sorted(before["worker"], key=lambda worker: worker.cpu_times().user)
                stopped = busiest if victims == "all" else busiest[-1:]
                for worker in stopped:
                    worker.suspend()
                begin = time.monotonic()
                until("all of them to be noticed", lambda s=stopped: not any(living(worker.pid) for worker in s))
                until("all workers", lambda b=before: whole(daemon, b))
                recovered(time.monotonic() - begin)
                asking.served(100)
            assert daemon.status() == 200
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes


def test_a_stopped_engine_is_replaced(
    rounds: Rounds, recovered: Callable[[float], None], artifacts: Path, tmp_path: Path
) -> None:
    """The engine is stopped: not ready meanwhile, each query it had ends with a typed error, and another serves."""
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp", **QUICK))) as daemon:
        for _ in rounds(quick=1, full=20):
            before = processes(daemon)
            [engine] = before["engine"]
            with traffic(daemon) as asking:
                asking.served(50)
                engine.suspend()
                begin = time.monotonic()
                until("not ready", lambda: daemon.status() == 503)
                assert daemon.status("/v2/health/live") == 200
                until("another engine", lambda e=engine: processes(daemon)["engine"] not in ([], [e]))
                asking.served(100)
                until("all workers", lambda b=before: whole(daemon, b))
                recovered(time.monotonic() - begin)
            assert daemon.status() == 200
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes


def test_an_engine_that_stops_while_it_starts_is_replaced(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """An engine that takes another's place is stopped before it is ready: a third one takes it."""
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp", **QUICK))) as daemon:
        for _ in rounds(quick=1, full=20):
            before = processes(daemon)
            with traffic(daemon) as asking:
                asking.served(50)
                before["engine"][0].kill()
                until("another engine", lambda b=before: set(processes(daemon)["engine"]) - set(b["engine"]))
                [stopped] = set(processes(daemon)["engine"]) - set(before["engine"])  # the first may just be dying
                stopped.suspend()
                until("it to be noticed", lambda s=stopped: not living(s.pid))
                until("all workers", lambda b=before: whole(daemon, b))
                asking.served(50)
            assert daemon.status() == 200
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes


def test_a_stopped_loader_is_replaced(
    rounds: Rounds, recovered: Callable[[float], None], artifacts: Path, tmp_path: Path
) -> None:
    """The process that checks artifacts is stopped: a load fails in time, the next one succeeds, all others serve."""
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp", "spin", **QUICK))) as daemon:
        for _ in rounds(quick=1, full=20):
            with traffic(daemon) as asking, triton_grpc.InferenceServerClient(daemon.grpc) as client:
                client.unload_model("spin")
                [loader] = processes(daemon)["loader"]
                loader.suspend()
                begin = time.monotonic()
                with pytest.raises(triton_grpc.InferenceServerException, match="spin is not loaded"):
                    client.load_model("spin", client_timeout=WAIT_S)
                client.load_model("spin", client_timeout=WAIT_S)
                recovered(time.monotonic() - begin)
                asking.served(50)
            assert set(asking.outcomes) == {"right"}, asking.outcomes


@pytest.mark.parametrize("victim", ["worker", "engine", "loader"])
def test_a_drain_does_not_wait_for_what_is_stopped(
    rounds: Rounds, artifacts: Path, tmp_path: Path, victim: str
) -> None:
    """A process is stopped when SIGTERM comes: the daemon ends in time with exit code 0, and leaves nothing."""
    text = configuration(artifacts, "mlp", **QUICK, drain_timeout_s=1.0)
    for _ in rounds(quick=1, full=20):
        with nothing_left(running(tmp_path, text)) as daemon:
            with traffic(daemon) as asking:
                asking.served(50)
                for process in processes(daemon)[victim]:
                    process.suspend()
                daemon.process.send_signal(signal.SIGTERM)
                assert daemon.process.wait(WAIT_S) == 0
            assert not asking.outcomes["wrong"]


def test_a_worker_that_stops_while_it_starts_is_replaced(
    rounds: Rounds, recovered: Callable[[float], None], artifacts: Path, tmp_path: Path
) -> None:
    """A worker that takes another's place is stopped before it has loaded its models: a third one takes it."""
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp", **QUICK))) as daemon:
        for _ in rounds(quick=1, full=20):
            before = processes(daemon)

            def new(old: list[psutil.Process] = before["worker"]) -> list[psutil.Process]:
                return [process for process in processes(daemon)["worker"] if process not in old]

            with traffic(daemon) as asking:
                asking.served(50)
                before["worker"][0].kill()
                until("another worker", lambda new=new: bool(new()))
                [stopped] = new()
                stopped.suspend()
                begin = time.monotonic()
                until("it to be noticed", lambda s=stopped: not living(s.pid))
                until("all workers", lambda b=before: whole(daemon, b))
                recovered(time.monotonic() - begin)
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes
