"""Models that leave memory while they are idle, and come back with a query: `max_resident_bytes`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import LONG_TURNS
from large_models import HUGE_PAGE, WEIGHTS_BYTES, large_mlp, mapped_weights, padded, sealed_files
from resident_models import (
    BUDGET,
    NAMES,
    PATIENT,
    asking,
    expected,
    ignore,
    loader_of,
    make_models,
    post,
    refused,
    serving,
    stopped,
    waiting,
)
from running_daemon import SERVE, X, configuration, spin, tensor, until
from tritonclient.utils import InferenceServerException

from veltair.errors import RefusalReason

pytestmark = pytest.mark.slow


@pytest.fixture
def models(artifacts: Path, tmp_path: Path) -> Path:
    return make_models(artifacts, tmp_path)


@pytest.mark.parametrize("fronts", [1, 0], ids=["native", "python"])
def test_three_models_are_served_where_two_fit(models: Path, fronts: int) -> None:
    with serving(models, *NAMES, "spin", fronts=fronts) as clients:
        assert clients.away() == ["three"]
        assert sealed_files(clients.pid) == 3
        with asking(clients) as failures:
            for name in NAMES * 3:
                assert clients.http.is_model_ready(name)
                assert clients.rpc.is_model_ready(name)
                for _ in range(3):  # the later ones follow their plan
                    assert clients.right(name)
                away = clients.away()
                assert name not in away
                assert len(away) == 1
                assert mapped_weights(clients.pid) < BUDGET + HUGE_PAGE
                assert sealed_files(clients.pid) == 3
        assert not failures
        moved = [
            sum(clients.count(f"veltair_model_{how}_total", name) for name in NAMES) for how in ("returns", "evictions")
        ]
        assert moved[0] == moved[1] >= 4  # which of two leaves is a matter of times
        assert clients.count("veltair_model_evictions_total", "spin") == 0
        assert clients.daemon.metric("veltair_worker_deaths_total") == 0
        text = (models / "log").read_text()
        assert "one 1 has left memory: " in text
        assert "three 1 is back in memory after " in text


def test_all_three_at_once(models: Path) -> None:
    with serving(models, *NAMES, "spin") as clients, asking(clients) as failures:
        wrong: list[str] = []

        def ask(name: str, module: Any, address: str) -> None:
            with module.InferenceServerClient(address, **PATIENT[module]) as client:
                for _ in range(4):
                    answer = client.infer(name, [tensor(module, "x", X, "FP32")]).as_numpy("y")
                    if not np.allclose(answer, expected(name), rtol=1e-4, atol=1e-4):
                        wrong.append(name)

        where = ((triton_http, clients.daemon.http), (triton_grpc, clients.daemon.grpc))
        with ThreadPoolExecutor(12) as pool:
            for asked in [pool.submit(ask, name, *each) for name in NAMES for each in where * 2]:
                asked.result()
        assert not wrong
        assert not failures


def test_many_queries_cause_one_load(models: Path) -> None:
    with serving(models, *NAMES) as clients, ThreadPoolExecutor(16) as pool:
        with stopped(loader_of(clients.pid)):
            asked = [pool.submit(clients.ask, module, "three") for module in (triton_http, triton_grpc) * 4]
            until("all of them", lambda: waiting(clients) >= len(asked))
        assert all(each.result() for each in asked)
        assert clients.count("veltair_model_returns_total", "three") == 1


def test_who_waits_for_a_model_waits_in_bounds(models: Path) -> None:
    with serving(models, *NAMES, "spin", model_wait_s=3.0) as clients, ThreadPoolExecutor(4) as pool:
        text = RefusalReason.NOT_RESIDENT.text
        with stopped(loader_of(clients.pid)):
            leaving = clients.rpc.async_infer("three", [tensor(triton_grpc, "x", X, "FP32")], callback=ignore)
            until("it waits", lambda: waiting(clients) == 1)
            leaving.cancel()  # somebody else still wants the model
            asked = pool.submit(clients.ask, triton_http, "three")
            with pytest.raises(InferenceServerException, match=r"[Dd]eadline"):
                clients.ask(triton_grpc, "three", client_timeout=0.3)
            with pytest.raises(InferenceServerException, match=RefusalReason.DEADLINE.text):
                clients.ask(triton_http, "three", timeout=200_000)
            status, headers, document = post(clients, "three")
            assert (status, document, "retry-after" in headers) == (503, {"error": text}, True)
            with pytest.raises(InferenceServerException, match=text):
                asked.result()
            assert clients.right(next(name for name in NAMES if name not in clients.away()))
        until("it is back", lambda: "three" not in clients.away())
        assert clients.right("three")
        assert clients.count("veltair_model_returns_total", "three") == 1


def test_a_model_with_queries_stays(artifacts: Path, models: Path) -> None:
    shutil.rmtree(models / "spin")
    padded(artifacts / "spin", models / "spin")
    with serving(models, "spin", "one", "two", pinned="one", model_wait_s=2.0, hung_block_s=60) as clients:
        assert clients.away() == ["two"]
        long = clients.rpc.async_infer("spin", spin(triton_grpc, LONG_TURNS, 1), callback=ignore)
        until("it runs", lambda: clients.count("veltair_queries_running", "spin") == 1)
        with pytest.raises(InferenceServerException, match=RefusalReason.NOT_RESIDENT.text):
            clients.ask(triton_http, "two")
        assert clients.away() == ["two"]
        long.cancel()
        until("it is idle", lambda: not refused(clients, "two"))
        assert clients.ask(triton_grpc, "two")
        assert clients.away() == ["spin"]


def test_what_cannot_be_in_memory_is_refused(models: Path) -> None:
    path = models / "serve.toml"
    for options, pinned, says in (
        ({"max_resident_bytes": WEIGHTS_BYTES}, "", "one takes .* of memory; server.max_resident_bytes is"),
        ({"max_resident_bytes": 0}, "", "max_resident_bytes: expected"),
        ({}, "all", "resident models take the rest|do not fit"),
    ):
        text = configuration(models, *NAMES, **({"max_resident_bytes": BUDGET} | options))
        path.write_text(text.replace("qos_ms", "resident = true\nqos_ms") if pinned else text)
        process = subprocess.run([sys.executable, "-c", SERVE, str(path)], capture_output=True, text=True)
        assert process.returncode == 2
        assert re.search(says, process.stderr)


def test_pinned_models_stay_and_a_large_one_is_refused_while_serving(artifacts: Path, models: Path) -> None:
    (models / "more").mkdir()
    with serving(models, *NAMES, pinned="one", repository=str(models / "more")) as clients:
        large_mlp(artifacts, models / "more" / "huge", size=BUDGET)
        for client in (clients.http, clients.rpc):
            with pytest.raises(InferenceServerException, match=r"huge takes .* of memory; server.max_resident_bytes"):
                client.load_model("huge")
        large_mlp(artifacts, models / "more" / "huge", size=2 * WEIGHTS_BYTES)
        with pytest.raises(InferenceServerException, match="of which resident models take the rest"):
            clients.http.load_model("huge")
        for name in ("two", "three", "two", "three"):
            assert clients.right(name)
            assert clients.right("one")
            assert "one" not in clients.away()
