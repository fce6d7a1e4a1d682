"""Queries that come one by one: I/O threads order them of a lent worker, and nobody but the engine's counts notices."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import mlp_outputs, spin_state
from lending_daemon import Long, ask_mlp, engine, lend, serving, wake_ups, whole
from running_daemon import Daemon, X, configuration, running, spin, tensor, until
from traffic import processes
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

ALONE = 60  # queries, one after the other


@pytest.mark.parametrize("module", [triton_grpc, triton_http], ids=["grpc", "http"])
def test_the_engine_sleeps_through_queries_that_come_one_by_one_and_counts_them(
    module: Any, artifacts: Path, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    with running(tmp_path, configuration(artifacts, "mlp", "spin", policy="veltair")) as daemon:
        address = daemon.grpc if module is triton_grpc else daemon.http
        with module.InferenceServerClient(address) as client:

            def ask() -> None:
                for i in range(ALONE):
                    x = generator.standard_normal((1 + i % 3, 16), dtype=np.float32)
                    found = client.infer("mlp", [tensor(module, "x", x, "FP32")]).as_numpy("y")
                    np.testing.assert_allclose(found, mlp_outputs(x), rtol=1e-4, atol=1e-4)

            ask()
            woken = wake_ups(daemon, ask)
        assert woken < ALONE / 2, woken
        assert daemon.metric("veltair_batch_queries_count", tenant="mlp") == 2 * ALONE


def test_others_take_the_worker_back_at_once(artifacts: Path, tmp_path: Path) -> None:
    with (
        running(tmp_path, configuration(artifacts, "mlp", "spin", policy="veltair", workers=1)) as daemon,
        triton_grpc.InferenceServerClient(daemon.grpc) as client,
    ):
        for turns in range(20):
            lend(daemon, client)
            found = client.infer("spin", spin(triton_grpc, turns, 3)).as_numpy("state")  # on the only worker
            assert found.tolist() == [spin_state(turns, 3)]


@pytest.fixture
def lone(artifacts: Path, tmp_path: Path) -> Iterator[tuple[Daemon, Any]]:
    with serving(artifacts, tmp_path, hung_block_s=60.0) as served:
        yield served


@pytest.fixture
def watched(artifacts: Path, tmp_path: Path) -> Iterator[tuple[Daemon, Any]]:
    with serving(artifacts, tmp_path, hung_block_s=1.0) as served:
        yield served


def test_the_scheduler_learns_of_a_claim_when_another_query_comes(lone: tuple[Daemon, Any]) -> None:
    daemon, client = lone
    long, ends = Long(daemon, client), list[Any]()
    client.async_infer("mlp", [tensor(triton_grpc, "x", X, "FP32")], lambda result, error: ends.append(error or result))
    until("it to run for all to see", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
    long.call.cancel()
    until("the other's answer", lambda: bool(ends), seconds=8)
    np.testing.assert_allclose(ends[0].as_numpy("y"), mlp_outputs(X), rtol=1e-4, atol=1e-4)
    whole(daemon, client)


def test_a_claim_whose_client_leaves_stops(lone: tuple[Daemon, Any]) -> None:
    daemon, client = lone
    Long(daemon, client).call.cancel()
    whole(daemon, client)


def test_a_claim_whose_deadline_passes_is_refused_and_stops(lone: tuple[Daemon, Any]) -> None:
    daemon, client = lone
    error = Long(daemon, client, timeout=200_000).end()
    assert isinstance(error, InferenceServerException)
    assert "DEADLINE_EXCEEDED" in str(error.status())
    whole(daemon, client)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_worker_that_dies_or_hangs_over_a_claim_costs_that_claim(
    number: signal.Signals, workers: int, artifacts: Path, tmp_path: Path
) -> None:
    with serving(artifacts, tmp_path, hung_block_s=1.0, workers=workers, spare_workers=0) as (daemon, client):
        long = Long(daemon, client)
        busy = max(processes(daemon)["worker"], key=lambda each: sum(each.cpu_times()[:2]))
        busy.send_signal(number)
        error = long.end()
        assert isinstance(error, InferenceServerException)
        assert "worker" in str(error)
        until("ready", lambda: daemon.status() == 200)
        whole(daemon, client, workers)


@pytest.mark.parametrize("end", ["kill", "suspend"])
def test_a_lent_worker_that_dies_or_stops_is_replaced(watched: tuple[Daemon, Any], end: str) -> None:
    daemon, client = watched
    lend(daemon, client)
    before, workers = daemon.metric("veltair_worker_deaths_total"), processes(daemon)["worker"]
    for worker in workers:
        getattr(worker, end)()
    until("their deaths", lambda: daemon.metric("veltair_worker_deaths_total") == before + len(workers), seconds=10)
    whole(daemon, client)


def test_models_come_and_go_while_a_worker_is_lent(lone: tuple[Daemon, Any]) -> None:
    daemon, client = lone
    for turns in range(5):
        lend(daemon, client)
        client.unload_model("spin")
        ask_mlp(client)
        lend(daemon, client)
        client.load_model("spin")
        assert client.infer("spin", spin(triton_grpc, turns, 3)).as_numpy("state").tolist() == [spin_state(turns, 3)]
    whole(daemon, client)


def test_a_drain_answers_what_was_claimed(artifacts: Path, tmp_path: Path) -> None:
    turns = 1 << 22
    with (
        running(tmp_path, configuration(artifacts, "mlp", "spin", policy="veltair")) as daemon,
        triton_grpc.InferenceServerClient(daemon.grpc) as client,
    ):
        long = Long(daemon, client, turns)
        daemon.process.send_signal(signal.SIGTERM)
        assert long.end().as_numpy("state").tolist() == [spin_state(turns, 3)]
        assert daemon.process.wait(60) == 0


def test_an_engine_that_dies_over_a_claim_fails_it(lone: tuple[Daemon, Any]) -> None:
    daemon, client = lone
    long = Long(daemon, client)
    engine(daemon).kill()
    assert isinstance(long.end(), InferenceServerException)
    until("another engine", lambda: daemon.status() == 200)
    whole(daemon, client)
