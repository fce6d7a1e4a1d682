"""The daemon with I/O threads in C, when processes die or it shuts down while their queries run; and its counts."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from example_models import LONG_TURNS, spin_state
from running_daemon import Daemon, X, configuration, running, spin, tensor, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

Answers = Queue[tuple[Any, Any]]
SOME_TURNS = LONG_TURNS // 8  # a second or so
NATIVE = {"fronts": 2, "workers": 1, "spare_workers": 0, "policy": "fcfs"}
NATIVE |= {"hung_engine_s": 2 * WAIT_S}  # a test that stops the engine is done before


def pids(daemon: Daemon, role: str) -> list[int]:
    with urllib.request.urlopen(f"http://{daemon.http}/metrics", timeout=WAIT_S) as page:
        found = re.findall(rf'\{{pid="(\d+)",role="{role}"\}}', page.read().decode())
    return sorted({int(pid) for pid in found})


def outcomes(daemon: Daemon, tenant: str) -> dict[str, float]:
    names = ("ok", "invalid", "overloaded", "deadline", "cancelled", "failed")
    counts = {name: daemon.metric("veltair_requests_total", tenant=tenant, outcome=name) for name in names}
    return {name: count for name, count in counts.items() if count}


def ask(client: Any, answers: Answers, turns: int, seed: int = 1) -> None:
    client.async_infer(
        "spin", spin(triton_grpc, turns, seed), lambda result, error: answers.put((result, error)), request_id=str(seed)
    )


def take(answers: Answers, count: int) -> list[tuple[Any, Any]]:
    return [answers.get(timeout=WAIT_S) for _ in range(count)]


@pytest.fixture
def daemon(bounded: Path, tmp_path: Path) -> Iterator[Daemon]:
    """One for each test, with two threads and one worker."""
    with running(tmp_path, configuration(bounded, "spin", "mlp", **NATIVE)) as started:
        with triton_grpc.InferenceServerClient(started.grpc) as client:
            client.infer("spin", spin(triton_grpc, 1, 1), request_id="any")  # the threads know its head from here on
            client.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")], request_id="any")
        yield started


def test_the_engine_is_killed_under_load(daemon: Daemon, rpc: Any) -> None:
    answers: Answers = Queue()
    for seed in range(6):
        ask(rpc, answers, LONG_TURNS, seed)
    until("all six to be held", lambda: daemon.metric("veltair_queries_held") == 6)
    (engine,) = pids(daemon, "engine")
    os.kill(engine, signal.SIGKILL)
    for result, error in take(answers, 6):
        assert result is None
        assert error.status() == "StatusCode.INTERNAL"
        assert error.message() == "the engine process ended (code -9) and took the query along"
    while True:
        try:
            result = rpc.infer("spin", spin(triton_grpc, 3, 5), request_id="any")
            break
        except InferenceServerException as error:
            assert error.status() == "StatusCode.UNAVAILABLE" and error.message() == "the engine is restarting"
    assert result.as_numpy("state").tolist() == [spin_state(3, 5)]
    counts = outcomes(daemon, "spin")
    assert counts["failed"] == 6 and counts["ok"] == 2 and set(counts) <= {"failed", "ok", "overloaded"}
    assert daemon.metric("veltair_queries_held") == 0


def test_an_answer_does_not_wait_for_the_engine(daemon: Daemon, rpc: Any) -> None:
    answers: Answers = Queue()
    ask(rpc, answers, SOME_TURNS)
    until("a running query", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
    (engine,) = pids(daemon, "engine")
    os.kill(engine, signal.SIGSTOP)
    try:
        ((result, error),) = take(answers, 1)
    finally:
        os.kill(engine, signal.SIGCONT)
    assert error is None
    assert result.as_numpy("state").tolist() == [spin_state(SOME_TURNS, 1)]
    assert rpc.infer("spin", spin(triton_grpc, 3, 5), request_id="any").as_numpy("state").tolist() == [spin_state(3, 5)]
    assert outcomes(daemon, "spin") == {"ok": 3}
    assert daemon.metric("veltair_queries_held") == daemon.metric("veltair_queries_running", tenant="spin") == 0


def test_a_killed_worker_costs_its_queries_alone(daemon: Daemon, rpc: Any) -> None:
    lost: Answers = Queue()
    waiting: Answers = Queue()
    ask(rpc, lost, LONG_TURNS)
    until("a running query", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
    for seed in range(4):
        ask(rpc, waiting, 2, seed)
    until("the others", lambda: daemon.metric("veltair_queries_held") == 5)
    for worker in pids(daemon, "worker"):
        os.kill(worker, signal.SIGKILL)
    ((result, error),) = take(lost, 1)
    assert result is None and error.status() == "StatusCode.INTERNAL" and "SIGKILL" in error.message()
    for result, error in take(waiting, 4):
        assert error is None
        assert result.as_numpy("state")[0] == spin_state(2, int(result.get_response().id))
    assert outcomes(daemon, "spin") == {"ok": 5, "failed": 1}


def test_clients_that_leave_and_deadlines_give_the_slots_back(daemon: Daemon, rpc: Any) -> None:
    answers: Answers = Queue()
    call = rpc.async_infer("spin", spin(triton_grpc, LONG_TURNS, 1), lambda *_: None, request_id="any")
    until("a running query", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
    call.cancel()
    until("its slot", lambda: daemon.metric("veltair_queries_held") == 0)
    with pytest.raises(InferenceServerException) as caught:
        rpc.infer("spin", spin(triton_grpc, LONG_TURNS, 1), request_id="any", client_timeout=0.2)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    until("its slot", lambda: daemon.metric("veltair_queries_held") == 0)
    ask(rpc, answers, 2, 9)
    ((result, error),) = take(answers, 1)
    assert error is None and result.as_numpy("state")[0] == spin_state(2, 9)


def test_sigterm_answers_what_the_threads_have_accepted(daemon: Daemon, rpc: Any) -> None:
    answers: Answers = Queue()
    turns = LONG_TURNS // 200
    for seed in range(4):
        ask(rpc, answers, turns, seed)
    until("all four to be accepted", lambda: daemon.metric("veltair_queries_held") == 4)
    daemon.process.send_signal(signal.SIGTERM)
    for result, error in take(answers, 4):
        assert error is None and result.as_numpy("state").shape == (1,)
    assert daemon.process.wait(WAIT_S) == 0


def test_a_second_signal_cuts_what_the_threads_have_accepted(daemon: Daemon, rpc: Any) -> None:
    answers: Answers = Queue()
    ask(rpc, answers, LONG_TURNS)
    until("a running query", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
    daemon.process.send_signal(signal.SIGTERM)
    until("not ready", lambda: not rpc.is_server_ready())
    with pytest.raises(InferenceServerException) as caught:
        rpc.infer("spin", spin(triton_grpc, 1, 1), request_id="any")
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    assert caught.value.message() == "the server is shutting down"
    daemon.process.send_signal(signal.SIGTERM)
    ((result, error),) = take(answers, 1)
    assert result is None and error.status() == "StatusCode.INTERNAL"
    assert error.message() == "the server shut down before the query was answered"
    assert daemon.process.wait(WAIT_S) == 0


def test_native_queries_are_counted_everywhere(daemon: Daemon, rpc: Any) -> None:
    (before,) = rpc.get_inference_statistics("mlp").model_stats
    for _ in range(5):
        rpc.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")], request_id="any")
    assert outcomes(daemon, "mlp") == {"ok": 6}

    def statistics() -> Any:
        (found,) = rpc.get_inference_statistics("mlp").model_stats
        return found

    # A worker tells the front first: an answer may be here before the engine has counted its execution.
    until("five executions", lambda: statistics().execution_count > before.execution_count + 4)
    after = statistics()
    assert after.execution_count == before.execution_count + 5
    assert after.inference_count == before.inference_count + 5 * len(X)
    assert after.inference_stats.success.count == 6
    for duration in ("compute_infer", "success"):
        assert getattr(after.inference_stats, duration).ns > getattr(before.inference_stats, duration).ns
    with urllib.request.urlopen(f"http://{daemon.http}/v2/models/mlp/stats", timeout=WAIT_S) as page:
        assert int(json.load(page)["model_stats"][0]["inference_stats"]["success"]["count"]) == 6
    with urllib.request.urlopen(f"http://{daemon.http}/admin/events", timeout=WAIT_S) as stream:
        while True:
            line = stream.readline()
            assert line
            if line.startswith(b"data: ") and "engine" in (frame := json.loads(line[6:])):
                break
    assert [tenant["answered"] for tenant in frame["tenants"]] == [1, 6]
