"""Queries that are shorter than a decision: they wait for the lent worker, whatever befalls those before them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from example_models import LONG_TURNS, mlp_outputs
from lending_daemon import Burst, Long, lend, lend_spin, serving, takes_spin, wake_ups, whole
from running_daemon import Daemon, X, tensor, until
from traffic import is_typed, processes
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow
LATE_NS = 50_000_000  # a target; what begins four fifths of it after its arrival is late


@pytest.fixture
def crowded(artifacts: Path, tmp_path: Path) -> Iterator[tuple[Daemon, Any]]:
    """What waits is in time, however slow the machine is."""
    with serving(artifacts, tmp_path, qos_ms=1_000.0, hung_block_s=60.0, policy="veltair") as served:
        yield served


def test_short_queries_that_come_at_once_wait_for_the_lent_worker(crowded: tuple[Daemon, Any]) -> None:
    daemon, client = crowded
    lend_spin(client)
    until("queries to wait for one another", lambda: wake_ups(daemon, Burst(client, [0] * 20).right) <= 5)
    bursts, each = 100, 8  # so many have room in a ring, however slow the machine is

    def ask() -> None:
        for seed in range(bursts):
            Burst(client, [(seed * number) % 7 for number in range(each)]).right(all_answered=True)

    before = daemon.metric("veltair_batch_queries_count", tenant="spin")
    woken = wake_ups(daemon, ask)
    assert woken < bursts * each / 4, woken
    until(
        "all to be counted",
        lambda: daemon.metric("veltair_batch_queries_count", tenant="spin") - before == bursts * each,
    )
    whole(daemon, client)


def test_a_long_query_that_others_wait_for_becomes_the_engines(crowded: tuple[Daemon, Any]) -> None:
    daemon, client = crowded
    lend_spin(client)
    long, burst = Long(daemon, client), Burst(client, list(range(20)))
    until("it to run for all to see", lambda: daemon.metric("veltair_queries_running", tenant="spin") >= 1)
    long.call.cancel()
    burst.right()
    until("queries to be taken", lambda: takes_spin(client))
    whole(daemon, client)


def test_those_that_wait_for_a_killed_worker_are_answered(crowded: tuple[Daemon, Any]) -> None:
    daemon, client = crowded
    lend_spin(client)
    long = Long(daemon, client)
    burst = Burst(client, list(range(20)))
    for worker in processes(daemon)["worker"][:1]:
        worker.kill()
    burst.right()
    long.call.cancel()
    until("queries to be taken", lambda: takes_spin(client))
    whole(daemon, client)


def test_those_that_a_worker_comes_to_too_late_are_refused_before_others(artifacts: Path, tmp_path: Path) -> None:
    """As on a machine whose cores others keep: what came first is late, and what comes next would be, too."""
    with serving(artifacts, tmp_path, qos_ms=LATE_NS / 1e6, policy="veltair") as (daemon, client):
        lend_spin(client)
        workers = processes(daemon)["worker"]
        for worker in workers:
            worker.suspend()
        waiting = Burst(client, [3] * 8)
        until("them to be held", lambda: daemon.metric("veltair_queries_held") == 8)
        late_ns = time.monotonic_ns() + LATE_NS
        until("them to be late", lambda: time.monotonic_ns() > late_ns)
        for worker in workers:
            worker.resume()
        waiting.right()
        refused = [end for end in waiting.ends.values() if isinstance(end, InferenceServerException)]
        assert refused and {end.status() for end in refused} == {"StatusCode.RESOURCE_EXHAUSTED"}
        until("queries to be taken", lambda: takes_spin(client))
        whole(daemon, client)


def test_those_that_wait_keep_their_deadlines(crowded: tuple[Daemon, Any]) -> None:
    daemon, client = crowded
    lend_spin(client)
    burst = Burst(client, [LONG_TURNS, *range(20)], timeout=300_000)
    until("all ends", lambda: len(burst.ends) == 21)
    refused = [number for number, end in burst.ends.items() if isinstance(end, InferenceServerException)]
    assert 0 in refused and all(is_typed(burst.ends[number]) for number in refused)
    until("queries to be taken", lambda: takes_spin(client))
    whole(daemon, client)


def test_queries_of_two_models_wait_for_one_another(crowded: tuple[Daemon, Any]) -> None:
    daemon, client = crowded
    lend_spin(client)
    lend(daemon, client)
    ends = list[Any]()
    for seed in range(10):
        burst = Burst(client, [seed] * 20)
        for _ in range(20):
            inputs = [tensor(triton_grpc, "x", X, "FP32")]
            client.async_infer("mlp", inputs, lambda result, error: ends.append(error or result))
        burst.right()
    until("the other's ends", lambda: len(ends) == 200)
    answers = [end for end in ends if not isinstance(end, InferenceServerException)]
    assert answers and all(is_typed(end) for end in ends if isinstance(end, InferenceServerException))
    for end in answers:
        np.testing.assert_allclose(end.as_numpy("y"), mlp_outputs(X), rtol=1e-4, atol=1e-4)
    until("queries to be taken", lambda: takes_spin(client))
    whole(daemon, client)
