"""Queries of one tenant that wait, and are served in the order of their requests' priorities."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import LONG_TURNS, spin_state
from running_daemon import configuration, running, spin, until
from running_engine import WAIT_S

from veltair.cli import main

pytestmark = pytest.mark.slow

PRIORITIES = [0, 5, 1, 900, 2, 4, 1, 0, 2, 3]  # in the order in which they arrive
LEVELS = {0: 3, 900: 5}  # what a priority means, of those that it is not itself


def ask(module: Any, address: str, priority: int) -> None:
    with module.InferenceServerClient(address) as client:
        answer = client.infer("spin", spin(module, 1, 1), priority=priority)
        assert answer.as_numpy("state")[0] == spin_state(1, 1)


def test_waiting_queries_are_served_by_priority(bounded: Path, tmp_path: Path, fronts: int) -> None:
    options = {"policy": "veltair", "workers": 1, "spare_workers": 0, "event_log": "events.jsonl", "fronts": fronts}
    text = configuration(bounded, "spin", **options).replace("qos_ms = 20.0", "qos_ms = 100000.0")
    log = tmp_path / "events.jsonl"
    with running(tmp_path, text) as daemon, ThreadPoolExecutor(len(PRIORITIES)) as threads:
        ways: list[tuple[Any, str]] = [(triton_grpc, daemon.grpc), (triton_http, daemon.http)]
        for way in ways:  # an I/O thread has a plan for each of them from here on
            for priority in set(PRIORITIES):
                ask(*way, priority)
        with triton_grpc.InferenceServerClient(daemon.grpc) as client:
            holder = client.async_infer("spin", spin(triton_grpc, LONG_TURNS, 1), lambda result, error: None)
            until("the only worker to be busy", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
            answers = []
            for count, priority in enumerate(PRIORITIES, 1):
                answers.append(threads.submit(ask, *ways[count % 2], priority))
                until("it to wait", lambda n=count: daemon.metric("veltair_queue_depth", tenant="spin") == n)
            holder.cancel()
            for answer in answers:
                answer.result(WAIT_S)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT_S) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    arrived = [line["query"] for line in lines if line["type"] == "QueryArrived"][-len(PRIORITIES) :]
    expected = [LEVELS.get(priority, priority) for priority in PRIORITIES]
    assert [query["priority_level"] for query in arrived] == expected
    finished = [line["query"] for line in lines if line["type"] == "FinishQuery"][-len(PRIORITIES) :]
    level = {query["id"]: query["priority_level"] for query in arrived}
    assert [level[query] for query in finished] == sorted(expected)
    assert main(["replay", str(log)]) == 0
