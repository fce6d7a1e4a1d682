"""What stays constant however long it goes on: memory and descriptors, over queries and over loads of models."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc as triton_grpc
from native_http import GET
from running_daemon import configuration, running, until
from traffic import (
    Traffic,
    connect,
    descriptors,
    every_process,
    leave,
    memory_bytes,
    processes,
    traffic,
    whole,
)

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
GROWTH_BYTES = 10 << 20  # of a process
QUERIES = 2000  # in a round
WARM_MINUTES = 12  # of a soak: until then the front's heap grows by 10 MB, to what so many connections at once take


def held(daemon: Any) -> dict[psutil.Process, tuple[int, int]]:
    """Bytes and descriptors of every process."""
    return {process: (memory_bytes(process), descriptors(process)) for process in every_process(daemon)}


def test_queries_leave_nothing_behind(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """2,000 queries a round over both protocols: no process grows by 10 MB once the first twentieth is over, and none
    has a descriptor more."""
    with running(tmp_path, configuration(artifacts, "mlp")) as daemon:
        tried = rounds(quick=5, full=500)
        for _ in range(max(1, len(tried) // 20)):  # plans are learnt, and buffers have what many queries a second take
            ask(daemon)
        before = held(daemon)
        for _ in tried:
            ask(daemon)
        nothing_grew(daemon, before)


def test_a_soak(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """A minute a round of queries over both protocols, with models that come and go, and clients that leave: all are
    right, and nothing grows once the first tenth is over."""
    chance = random.Random(7)
    with running(tmp_path, configuration(artifacts, "mlp", "spin", model_control=True)) as daemon:
        before: dict[psutil.Process, tuple[int, int]] | None = None
        for minute in rounds(quick=0, full=120):
            if minute == WARM_MINUTES:
                before = held(daemon)
            end_s = time.monotonic() + 60
            with traffic(daemon) as asking:
                while time.monotonic() < end_s:
                    come_and_go(daemon, 1)
                    leave(daemon, chance)
                    asking.served(100)
            assert set(asking.outcomes) == {"right"}, asking.outcomes
            if before is not None:
                nothing_grew(daemon, before)
        assert before is not None, "too few rounds: nothing was compared"


def nothing_grew(daemon: Any, before: dict[psutil.Process, tuple[int, int]]) -> None:
    """The same processes, with no descriptor more, and hardly more memory."""
    until("connections to be closed", lambda: all(descriptors(p) <= before[p][1] for p in before))
    after = held(daemon)
    assert after.keys() == before.keys()
    grown = {process.pid: after[process][0] - before[process][0] for process in before}
    assert max(grown.values()) < GROWTH_BYTES, grown


def ask(daemon: Any) -> None:
    with traffic(daemon) as asking:
        asking.served(QUERIES)
    assert set(asking.outcomes) == {"right"}, asking.outcomes


def test_models_come_and_go_beside_queries(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """A model is loaded and unloaded 8 times a round: every query of the others is right, and nothing grows."""
    with running(tmp_path, configuration(artifacts, "mlp", "spin", model_control=True)) as daemon:
        come_and_go_beside_queries(daemon, 4)  # heaps have grown to what a few clients take
        before = held(daemon)
        for _ in rounds(quick=1, full=4096):
            come_and_go_beside_queries(daemon, 8)
        nothing_grew(daemon, before)


def come_and_go_beside_queries(daemon: Any, times: int) -> None:
    with traffic(daemon) as asking:
        come_and_go(daemon, times)
        asking.served(QUERIES)
    assert set(asking.outcomes) == {"right"}, asking.outcomes


def come_and_go(daemon: Any, times: int) -> None:
    with triton_grpc.InferenceServerClient(daemon.grpc) as client:
        for _ in range(times):
            client.unload_model("spin")
            client.load_model("spin")


def test_without_descriptors_those_who_are_in_are_served(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """The front runs out of descriptors: open connections are served, and new ones once there are some again."""
    with running(tmp_path, configuration(artifacts, "mlp")) as daemon:
        front = psutil.Process(daemon.process.pid)
        soft, hard = front.rlimit(psutil.RLIMIT_NOFILE)
        for _ in rounds(quick=2, full=50):
            with traffic(daemon) as asking:
                asking.served(200)
                front.rlimit(psutil.RLIMIT_NOFILE, (descriptors(front), hard))
                with connect(daemon.http) as waiting:  # in the system's backlog
                    waiting.sendall(GET)
                    asking.served(200)
                    front.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
                    assert waiting.recv(1 << 12).startswith(b"HTTP/1.1 200 ")
                late = Traffic(daemon, asking.expected)
                late.served(200)
                late.end()
            assert set(asking.outcomes) == set(late.outcomes) == {"right"}, (asking.outcomes, late.outcomes)


def test_an_engine_that_can_start_nobody_goes_on_trying(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """A worker dies while the system gives the engine no descriptor: it is replaced once it does."""
    with running(tmp_path, configuration(artifacts, "mlp")) as daemon:
        for _ in rounds(quick=1, full=20):
            [engine] = processes(daemon)["engine"]
            before, workers = engine.rlimit(psutil.RLIMIT_NOFILE), processes(daemon)["worker"]
            with traffic(daemon) as asking:
                asking.served(50)
                engine.rlimit(psutil.RLIMIT_NOFILE, (descriptors(engine), before[1]))
                workers[0].kill()
                asking.served(200)  # the others serve
                engine.rlimit(psutil.RLIMIT_NOFILE, before)
                until("another worker", lambda d=daemon, w=workers: len(processes(d)["worker"]) == len(w))
            assert not asking.outcomes["wrong"] and not asking.outcomes["lost"], asking.outcomes
            assert [process.pid for process in processes(daemon)["engine"]] == [engine.pid]


def test_a_front_that_can_start_no_engine_goes_on_trying(
    rounds: Rounds, recovered: Callable[[float], None], artifacts: Path, tmp_path: Path
) -> None:
    """The engine dies while the system gives the front no descriptor: one comes once it does, and failed starts leave
    no descriptor open."""
    with running(tmp_path, configuration(artifacts, "mlp")) as daemon:
        front = psutil.Process(daemon.process.pid)
        soft, hard = front.rlimit(psutil.RLIMIT_NOFILE)
        assert daemon.status("/metrics") == 200  # libuv opens one in reserve shortly after the daemon says it is ready
        for _ in rounds(quick=1, full=20):
            before, had, refused = processes(daemon), descriptors(front), failed_starts(tmp_path)
            front.rlimit(psutil.RLIMIT_NOFILE, (had - 8, hard))
            before["engine"][0].kill()
            until("failed starts", lambda r=refused: failed_starts(tmp_path) >= r + 3)
            front.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
            begin = time.monotonic()
            until("all workers", lambda b=before: whole(daemon, b))
            recovered(time.monotonic() - begin)
            until("no descriptor more", lambda h=had: descriptors(front) <= h)


def test_engines_that_died_leave_no_memory(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """The engine is killed while many ask for queries, metrics and statistics: nothing of it stays in the front."""
    with running(tmp_path, configuration(artifacts, "mlp")) as daemon:
        front = psutil.Process(daemon.process.pid)
        assert daemon.status("/metrics") == 200  # libuv opens one in reserve shortly after the daemon says it is ready
        had = descriptors(front)
        for _ in rounds(quick=3, full=40):
            before = processes(daemon)
            with traffic(daemon) as asking, ThreadPoolExecutor(4) as pool:
                asking.served(20)
                asked = [pool.submit(daemon.status, path) for path in (*("/metrics", "/v2/models/mlp/stats") * 20,)]
                before["engine"][0].kill()
                assert {each.result() for each in asked} <= {200, 503}
                until("all workers", lambda b=before: whole(daemon, b))
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes
            until("its memory to go", lambda: descriptors(front) <= had)


def failed_starts(folder: Path) -> int:
    return (folder / "log").read_text().count("the engine does not start")
