"""Requests that the daemon refuses, and clients that leave."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import LONG_TURNS, mlp_outputs, spin_state
from running_daemon import Daemon, X, configuration, running, spin, tensor, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon(bounded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    text = configuration(bounded, "mlp", "spin", "ranged", body_limit_mb=4, shared_memory=True)
    with running(tmp_path_factory.mktemp("daemon"), text) as started:
        yield started


def bytes_tensor(module: Any) -> list[Any]:
    return [tensor(module, "x", np.array([[b"a"] * 16], object), "BYTES")]


BAD: dict[str, tuple[str, Callable[[Any], list[Any]], int, str, str]] = {
    "unknown model": ("nope", lambda m: spin(m, 1, 1), 404, "NOT_FOUND", "unknown model 'nope'"),
    "bytes": ("mlp", bytes_tensor, 400, "INVALID_ARGUMENT", "'x' is FP32, got 'BYTES'"),
    "dtype": ("mlp", lambda m: [tensor(m, "x", X.astype("f8"), "FP64")], 400, "INVALID_ARGUMENT", "FP64"),
    "name": ("mlp", lambda m: [tensor(m, "w", X, "FP32")], 400, "INVALID_ARGUMENT", "no input 'w'"),
    "missing": ("spin", lambda m: spin(m, 1, 1)[:1], 400, "INVALID_ARGUMENT", "'seed' is missing"),
    "twice": ("spin", lambda m: [*spin(m, 1, 1), spin(m, 1, 1)[0]], 400, "INVALID_ARGUMENT", "given twice"),
    "shape": ("mlp", lambda m: [tensor(m, "x", X[:, :9].copy(), "FP32")], 400, "INVALID_ARGUMENT", "got [5, 9]"),
    "batch": ("mlp", lambda m: [tensor(m, "x", np.tile(X, (2, 1)), "FP32")], 400, "INVALID_ARGUMENT", "got [10, 16]"),
    "batch 0": ("mlp", lambda m: [tensor(m, "x", X[:0], "FP32")], 400, "INVALID_ARGUMENT", "got [0, 16]"),
    "id -1": ("ranged", lambda m: spin(m, 1, -1), 400, "INVALID_ARGUMENT", "has -1 at [0]; ids go from 0 to 99"),
    "id past the end": ("ranged", lambda m: spin(m, 1, 100), 400, "INVALID_ARGUMENT", "has 100 at [0]"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_and_then_a_good_one(http: Any, rpc: Any, case: str) -> None:
    model, inputs, status, code, message = BAD[case]
    for client, module, expected in ((http, triton_http, str(status)), (rpc, triton_grpc, f"StatusCode.{code}")):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, inputs(module))
        assert caught.value.status() == expected
        assert message in caught.value.message()
        good = client.infer("ranged", spin(module, 1, 99))
        assert good.as_numpy("state")[0] == spin_state(1, 99)


def test_what_is_not_served(http: Any, rpc: Any) -> None:
    refused = [
        lambda c: c.load_model("mlp"),
        lambda c: c.unload_model("mlp"),
        lambda c: c.get_cuda_shared_memory_status(),
        lambda c: c.get_trace_settings(),
        lambda c: c.get_log_settings(),
    ]
    for call in refused:
        for client, expected in ((http, "501"), (rpc, "StatusCode.UNIMPLEMENTED")):
            with pytest.raises(InferenceServerException) as caught:
                call(client)
            assert caught.value.status() == expected


def test_large_bodies(daemon: Daemon, http: Any, rpc: Any) -> None:
    huge = np.zeros((1 << 17, 16), np.float32)  # 8 MB, 4 are allowed
    with pytest.raises(InferenceServerException) as caught:
        rpc.infer("mlp", [tensor(triton_grpc, "x", huge, "FP32")])
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    with socket.create_connection(daemon.http.split(":"), WAIT_S) as client:
        client.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
        answer = client.makefile("rb").read()  # to the end: it closes, no byte of the body was needed
    assert answer.startswith(b"HTTP/1.1 413 ") and b'{"error":' in answer
    padded = {"note": "." * (1 << 20)}  # parsed by the child process
    result = http.infer("mlp", [tensor(triton_http, "x", X, "FP32", binary_data=False)], parameters=padded)
    np.testing.assert_allclose(result.as_numpy("y"), mlp_outputs(X), rtol=1e-4, atol=1e-4)


GARBAGE = [
    b"hello\r\n\r\n",
    b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
    b"POST /v2/models/%00/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    os.urandom(64) + b"\r\n\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_on_the_wire_harms_nobody(daemon: Daemon, http: Any, garbage: bytes) -> None:
    for address in (daemon.http, daemon.grpc):
        with socket.create_connection(address.split(":"), WAIT_S) as client:
            client.sendall(garbage)
    assert http.infer("mlp", [tensor(triton_http, "x", X, "FP32")]).as_numpy("y").shape == (5, 8)
    assert daemon.process.poll() is None


def test_clients_that_leave_cancel_their_queries(daemon: Daemon, rpc: Any) -> None:
    def cancelled() -> float:
        return daemon.metric("veltair_requests_total", tenant="spin", outcome="cancelled")

    def idle() -> bool:
        return daemon.metric("veltair_queries_running", tenant="spin") == 0

    before = cancelled()
    call = rpc.async_infer("spin", spin(triton_grpc, LONG_TURNS, 1), lambda result, error: None)
    until("a running query", lambda: not idle())
    call.cancel()
    until("the gRPC call to be cancelled", lambda: cancelled() == before + 1 and idle())

    inputs = [
        {"name": name, "shape": [1], "datatype": "INT32", "data": [value]}
        for name, value in (("turns", LONG_TURNS), ("seed", 1))
    ]
    body = json.dumps({"inputs": inputs}).encode()
    with socket.create_connection(daemon.http.split(":"), WAIT_S) as client:
        head = f"POST /v2/models/spin/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        until("a running query", lambda: not idle())
    until("the HTTP request to be cancelled", lambda: cancelled() == before + 2 and idle())


def test_timeouts(http: Any, rpc: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        http.infer("spin", spin(triton_http, LONG_TURNS, 1), timeout=100_000)
    assert caught.value.status() == "504" and "deadline" in caught.value.message()
    with pytest.raises(InferenceServerException) as caught:
        rpc.infer("spin", spin(triton_grpc, LONG_TURNS, 1), timeout=100_000)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED" and "deadline" in caught.value.message()
    with pytest.raises(InferenceServerException) as caught:
        rpc.infer("spin", spin(triton_grpc, LONG_TURNS, 1), client_timeout=0.1)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
