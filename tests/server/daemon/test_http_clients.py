"""Stock clients over HTTP, whose later requests the I/O threads answer; and what they pass on to uvicorn."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from example_models import LONG_TURNS, mlp_outputs, spin_state
from running_daemon import Daemon, X, configuration, running, spin, tensor, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


def body(turns: int, seed: int) -> tuple[bytes, dict[str, str]]:
    data, size = triton.InferenceServerClient.generate_request_body(spin(triton, turns, seed))
    return data, {"Inference-Header-Content-Length": str(size)}


def test_request_after_request(http: Any) -> None:
    for seed in range(20):
        result = http.infer("spin", spin(triton, 2, seed), request_id=str(seed))
        assert result.as_numpy("state")[0] == spin_state(2, seed)
        assert result.get_response()["id"] == str(seed)
        if seed % 5 == 0:
            assert http.is_server_ready() and http.get_model_metadata("spin")["name"] == "spin"
    for compression in ("gzip", "deflate"):
        result = http.infer("spin", spin(triton, 2, 3), request_id="c", response_compression_algorithm=compression)
        assert result.as_numpy("state")[0] == spin_state(2, 3)


def test_greenlets(daemon: Daemon) -> None:
    with triton.InferenceServerClient(daemon.http, concurrency=8, network_timeout=WAIT_S) as client:
        pending = [client.async_infer("spin", spin(triton, 2, seed), request_id=str(seed)) for seed in range(64)]
        for seed, request in enumerate(pending):
            assert request.get_result().as_numpy("state")[0] == spin_state(2, seed)


def test_asyncio(daemon: Daemon) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(daemon.http) as client:
            for _ in range(3):
                results = await asyncio.gather(*(client.infer("spin", spin(triton_aio, 2, s)) for s in range(16)))
                assert [r.as_numpy("state")[0] for r in results] == [spin_state(2, seed) for seed in range(16)]

    asyncio.run(main())


def test_curl(daemon: Daemon, tmp_path: Path, fronts: int) -> None:
    data, headers = body(2, 3)
    (tmp_path / "body").write_bytes(data)
    out, url = tmp_path / "out", f"http://{daemon.http}/v2/models/spin/infer"
    command = ["curl", "-sS", "--data-binary", f"@{tmp_path / 'body'}", "-w", "%{http_code} "]
    command += [flag for header in headers.items() for flag in ("-H", ": ".join(header))]
    ways = [[], ["--http1.0"], ["-H", "Expect: 100-continue"], ["-H", "Transfer-Encoding: chunked"]]
    ways += [["--http2"], ["--http2", "-H", "Transfer-Encoding: chunked"]] if fronts else []  # it offers to upgrade
    for more in ways:
        requests = ["-o", str(out), url] * 3  # over one connection
        found = subprocess.run([*command, *more, *requests], capture_output=True, text=True, timeout=WAIT_S)
        assert found.stdout == "200 200 200 ", found
        assert out.read_bytes().endswith(np.array([spin_state(2, 3)], np.int32).tobytes())


def test_tensors_in_shared_memory(http: Any, memory: Any) -> None:
    http.register_system_shared_memory("tensors", f"veltair-test-{os.getpid()}", 480)
    x, y = triton.InferInput("x", [5, 16], "FP32"), triton.InferRequestedOutput("y")
    x.set_shared_memory("tensors", 320)
    y.set_shared_memory("tensors", 160, 320)
    for turn in range(3):
        values = X * (turn + 1)
        shm.set_shared_memory_region(memory, [values])
        response = http.infer("mlp", [x], outputs=[y]).get_response()
        assert response["outputs"][0]["parameters"]["shared_memory_region"] == "tensors"
        found = shm.get_contents_as_numpy(memory, np.float32, [5, 8], 320)
        np.testing.assert_allclose(found, mlp_outputs(values), rtol=1e-4, atol=1e-4)
    http.unregister_system_shared_memory("tensors")
    with pytest.raises(InferenceServerException, match="no region 'tensors'"):
        http.infer("mlp", [x], outputs=[y])


def test_pages(daemon: Daemon) -> None:
    for path in ("/metrics", "/admin", "/v2"):
        with urllib.request.urlopen(f"http://{daemon.http}{path}", timeout=WAIT_S) as page:
            assert page.status == 200 and page.read()
    with urllib.request.urlopen(f"http://{daemon.http}/admin/events", timeout=WAIT_S) as events:
        assert events.readline().startswith(b"data:") or events.readline()


def test_a_large_body(daemon: Daemon) -> None:
    """Four megabytes are allowed; what is longer is refused before it is read."""
    connection = http.client.HTTPConnection(daemon.http, timeout=WAIT_S)
    for size, status in ((4 << 20, 400), (1 << 10, 400)):
        connection.request("POST", "/v2/models/mlp/infer", bytes(size))
        answer = connection.getresponse()
        assert answer.status == status and "error" in json.loads(answer.read())
    connection.close()


def test_fast_answers_are_counted(daemon: Daemon, http: Any) -> None:
    def answered() -> float:
        return daemon.metric("veltair_requests_total", tenant="mlp", outcome="ok")

    before = answered()
    for _ in range(5):
        http.infer("mlp", [tensor(triton, "x", X, "FP32")], request_id="counted")
    assert answered() == before + 5


def test_timeouts_and_clients_that_leave(daemon: Daemon, http: Any) -> None:
    def cancelled() -> float:
        return daemon.metric("veltair_requests_total", tenant="spin", outcome="cancelled")

    http.infer("spin", spin(triton, 1, 1), timeout=100_000)  # the plan
    for _ in range(2):
        with pytest.raises(InferenceServerException) as caught:
            http.infer("spin", spin(triton, LONG_TURNS, 1), timeout=100_000)
        assert caught.value.status() == "504" and "deadline" in caught.value.message()
    before = cancelled()
    connection = http_connection(daemon)
    connection.request("POST", "/v2/models/spin/infer", *body(LONG_TURNS, 1))
    until("a running query", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
    connection.close()
    until("the query to be cancelled", lambda: cancelled() == before + 1)


def http_connection(daemon: Daemon) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(daemon.http, timeout=WAIT_S)


def test_shutting_down_answers_and_closes(bounded: Path, tmp_path: Path) -> None:
    with running(tmp_path, configuration(bounded, "spin")) as daemon:
        idle, client = http_connection(daemon), http_connection(daemon)
        for connection in (idle, client):
            connection.request("POST", "/v2/models/spin/infer", *body(1, 1))
            assert connection.getresponse().read()
        client.request("POST", "/v2/models/spin/infer", *body(LONG_TURNS // 200, 7))
        until("the query to be accepted", lambda: daemon.metric("veltair_queries_held") == 1)
        daemon.process.send_signal(signal.SIGTERM)
        data = client.getresponse().read()
        assert data.endswith(np.array([spin_state(LONG_TURNS // 200, 7)], np.int32).tobytes())
        assert daemon.process.wait(WAIT_S) == 0
        assert idle.sock.recv(1) == b""
        for connection in (idle, client):
            connection.close()
