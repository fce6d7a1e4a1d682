"""Small inputs that would cost much, and HTTP/2 as h2spec speaks it, to a daemon that serves a neighbour meanwhile."""

from __future__ import annotations

import gzip
import http.client
import socket
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.http as triton_http
from example_models import mlp_outputs
from h2spec_cases import CASES
from h2spec_frames import Until, found
from running_daemon import Daemon, X, tensor
from running_engine import WAIT_S
from tritonclient.grpc import service_pb2 as pb
from wire_frames import frame, parse_frames

from veltair.grpc.http2 import frames

pytestmark = pytest.mark.slow

INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMIT_BYTES = 4 << 20  # of a body, in conftest.py


def in_json(shape: str = "[1]", data: str = "[1]", datatype: str = "INT64", inputs: int = 1, rest: str = "") -> bytes:
    one = f'{{"name":"x","shape":{shape},"datatype":"{datatype}","data":{data}}}'
    return f'{{"inputs":[{",".join([one] * inputs)}]{rest}}}'.encode()


HUGE = "[" + ",".join(["4611686018427387904"] * 12_000) + "]"  # dimensions; as JSON that this process still parses
OVER_HTTP: dict[str, tuple[bytes, str]] = {
    "thousands of huge dimensions": (in_json(HUGE), ""),
    "a hundred thousand huge dimensions": (in_json("[" + ",".join(["4611686018427387904"] * 100_000) + "]"), ""),
    "a number of a million digits": (in_json(data=f"[{'1' * 10**6}]"), ""),
    "a dimension of thousands of digits": (in_json(f"[{'1' * 4000}]"), ""),
    "nested a hundred thousand deep": (in_json(data="[" * 100_000 + "]" * 100_000), ""),
    "objects a hundred thousand deep": (b'{"a":' * 100_000, ""),
    "fifty thousand inputs": (in_json(inputs=50_000), ""),
    "rows of no numbers": (in_json(data="[[1]," + ",".join(["[]"] * 500_000) + "]"), ""),
    "fifty thousand parameters": (
        in_json(rest=',"parameters":{' + ",".join(f'"{i}":1' for i in range(50_000)) + "}"),
        "",
    ),
    "a gzip bomb": (gzip.compress(bytes(1 << 28)), "gzip"),
    "a gzip bomb within the limit": (gzip.compress(b"[" * (LIMIT_BYTES - 1)), "gzip"),
}


def typed(count: int, inputs: int = 1, datatype: str = "INT64", field: str = "int64_contents") -> bytes:
    message = pb.ModelInferRequest(model_name="mlp")
    for _ in range(inputs):
        entry = message.inputs.add(name="x", datatype=datatype, shape=[count])
        getattr(entry.contents, field).extend([1] * count)
    data: bytes = message.SerializeToString()
    return data


def raw(datatype: str, shape: list[int], data: bytes) -> bytes:
    message = pb.ModelInferRequest(model_name="mlp", raw_input_contents=[data])
    message.inputs.add(name="x", datatype=datatype, shape=shape)
    encoded: bytes = message.SerializeToString()
    return encoded


OVER_GRPC: dict[str, tuple[bytes, Any]] = {
    "millions of typed numbers": (typed(4_000_000), None),
    "millions of typed truths": (typed(4_000_000, datatype="BOOL", field="bool_contents"), None),
    "fifty thousand inputs": (typed(1, 50_000), None),
    "huge dimensions": (raw("INT64", [1 << 62] * 100_000, b""), None),
    "strings with lengths that lie": (raw("BYTES", [1 << 40], struct.pack("<I", 0xFFFFFFFF) * 1000), None),
    "a million raw tensors": (b"\x0a\x03mlp" + b"\x3a\x00" * 1_000_000, None),
    "a gzip bomb": (bytes(LIMIT_BYTES), grpc.Compression.Gzip),
}


def ask_over_http(daemon: Daemon, body: bytes, coding: str) -> int:
    host, _, port = daemon.http.rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=4 * WAIT_S)
    client.request("POST", "/v2/models/mlp/infer", body, {"Content-Encoding": coding} if coding else {})
    answer = client.getresponse()
    assert b'"error"' in answer.read()
    client.close()
    return answer.status


def ask_neighbour(daemon: Daemon) -> None:
    """A query, and a request that Python answers: both come back, and are right."""
    with triton_http.InferenceServerClient(daemon.http, network_timeout=WAIT_S) as client:
        found = client.infer("mlp", [tensor(triton_http, "x", X, "FP32")])
        np.testing.assert_allclose(found.as_numpy("y"), mlp_outputs(X), rtol=1e-4, atol=1e-4)
    with urllib.request.urlopen(f"http://{daemon.http}/v2/health/ready", timeout=WAIT_S) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("case", OVER_HTTP)
def test_small_inputs_over_http_that_would_cost_much(daemon: Daemon, case: str) -> None:
    body, coding = OVER_HTTP[case]
    host, _, port = daemon.http.rpartition(":")
    head = f"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    head += f"Content-Encoding: {coding}\r\n" if coding else ""
    with socket.create_connection((host, int(port)), WAIT_S) as other:
        other.sendall(head.encode() + b"\r\n" + body)  # whose answer is not waited for
        ask_neighbour(daemon)
    assert ask_over_http(daemon, body, coding) in (400, 413)
    assert daemon.process.poll() is None


@pytest.mark.parametrize("case", OVER_GRPC)
def test_small_inputs_over_grpc_that_would_cost_much(daemon: Daemon, case: str) -> None:
    data, compression = OVER_GRPC[case]
    with grpc.insecure_channel(daemon.grpc, [("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary(INFER).future(data, compression=compression, timeout=4 * WAIT_S)
        ask_neighbour(daemon)
        error = call.exception(4 * WAIT_S)
        assert isinstance(error, grpc.RpcError)
        assert error.code() in (  # type: ignore[attr-defined]
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
    assert daemon.process.poll() is None


@contextmanager
def speaking(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as client:
        client.sendall(frames.PREFACE + frame(frames.SETTINGS, 0, 0))
        yield client


class Reader:
    """The frames that come; None behind the last."""

    def __init__(self, client: socket.socket) -> None:
        self._client, self._held = client, b""

    def next(self) -> tuple[int, int, int, bytes] | None:
        while True:
            if (whole := parse_frames(self._held)) and len(whole[0][3]) == int.from_bytes(self._held[:3], "big"):
                self._held = self._held[9 + len(whole[0][3]) :]
                return whole[0]
            try:
                part = self._client.recv(1 << 16)
            except ConnectionResetError:
                part = b""
            if not part:
                return None
            self._held += part


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.held])
def test_h2spec(daemon: Daemon, name: str) -> None:
    """The cases whose streams need not stay half closed: a server that answers does not let them."""
    case = CASES[name]
    errors = (frames.GOAWAY, frames.RST_STREAM)
    with speaking(daemon.grpc) as client:
        reader, replies = Reader(client), []
        reader.next()  # its settings
        for step in case.steps:
            if isinstance(step, Until):
                while (reply := reader.next()) and (reply[0] != step.kind or reply[1] & step.flags != step.flags):
                    pass
                assert reply is not None
            else:
                with suppress(BrokenPipeError, ConnectionResetError):  # an error before has ended the connection
                    client.sendall(step)
        while not (seen := found(case, replies)) or (case.outcome not in seen and case.outcome.kind not in errors):
            if (reply := reader.next()) is None:
                break
            if reply[0] != frames.SETTINGS or case.outcome.kind == frames.SETTINGS:
                replies.append(reply)
        if case.outcome.kind in errors:  # an answer may have come before the error
            while case.outcome not in (seen := found(case, replies)) and (reply := reader.next()) is not None:
                replies.append(reply)
            assert [each.code for each in seen if each.kind in errors] == [case.outcome.code]
        else:
            assert case.outcome in seen and not [each for each in seen if each.kind in errors]
