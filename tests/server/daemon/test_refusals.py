"""Requests that the daemon refuses, and clients that leave."""

import json
import os
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import LONG_TURNS, mlp_outputs, spin_state
from running_daemon import Daemon, X, spin, tensor, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


def bytes_tensor(module: Any) -> list[Any]:
    return [tensor(module, "x", np.array([[b"a"] * 16], object), "BYTES")]


class BadRequest(NamedTuple):
    model: str
    inputs: Callable[[Any], list[Any]]  # of a tritonclient module
    message: str


def wide(module: Any, values: Any, name: str = "x", datatype: str = "FP32") -> list[Any]:
    return [tensor(module, name, values, datatype)]


BAD = {
    "bytes": BadRequest("mlp", bytes_tensor, "'x' is FP32, got 'BYTES'"),
    "dtype": BadRequest("mlp", lambda m: wide(m, X.astype("f8"), datatype="FP64"), "FP64"),
    "name": BadRequest("mlp", lambda m: wide(m, X, name="w"), "no input 'w'"),
    "missing": BadRequest("spin", lambda m: spin(m, 1, 1)[:1], "'seed' is missing"),
    "twice": BadRequest("spin", lambda m: [*spin(m, 1, 1), spin(m, 1, 1)[0]], "given twice"),
    "shape": BadRequest("mlp", lambda m: wide(m, X[:, :9].copy()), "got [5, 9]"),
    "batch": BadRequest("mlp", lambda m: wide(m, np.tile(X, (2, 1))), "got [10, 16]"),
    "batch 0": BadRequest("mlp", lambda m: wide(m, X[:0]), "got [0, 16]"),
    "id -1": BadRequest("ranged", lambda m: spin(m, 1, -1), "has -1 at [0]; ids go from 0 to 99"),
    "id past the end": BadRequest("ranged", lambda m: spin(m, 1, 100), "has 100 at [0]"),
    "unknown model": BadRequest("nope", lambda m: spin(m, 1, 1), "unknown model 'nope'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_and_then_a_good_one(http: Any, rpc: Any, case: str) -> None:
    model, inputs, message = BAD[case]
    status, code = ("404", "NOT_FOUND") if case == "unknown model" else ("400", "INVALID_ARGUMENT")
    for client, module, expected in ((http, triton_http, status), (rpc, triton_grpc, f"StatusCode.{code}")):
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
        lambda c: c.register_cuda_shared_memory("region", b"aGFuZGxl", 0, 8),
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
