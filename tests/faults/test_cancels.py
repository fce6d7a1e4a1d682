"""Clients that leave, at each point of a query's way."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from example_models import LONG_TURNS, spin_state
from native_http import post
from running_daemon import Daemon, configuration, running, spin, until
from traffic import connect, nothing_left, traffic

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
SLOTS = 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
HEADERS, DATA, RST_STREAM = 1, 0, 3
END_HEADERS, END_STREAM = 4, 1


def json_query(turns: int, filler: int = 0) -> bytes:
    """A query for spin over HTTP, as bytes."""
    inputs = ",".join(
        f'{{"name": "{name}", "shape": [1], "datatype": "INT32", "data": [{value}]}}'
        for name, value in (("turns", turns), ("seed", 1))
    )
    return post(b'{"inputs": [' + inputs.encode() + b"]" + b" " * filler + b"}", None, path="/v2/models/spin/infer")


def frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field as HPACK's literal without indexing."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def grpc_query(turns: int) -> tuple[bytes, bytes]:
    """Head and message of a query for spin over gRPC, as frames."""
    request = triton_grpc.service_pb2.ModelInferRequest(model_name="spin")
    for entry, value in zip(spin(triton_grpc, turns, 1), (turns, 1), strict=True):
        request.inputs.add(name=entry.name(), datatype="INT32", shape=[1])
        request.raw_input_contents.append(struct.pack("<i", value))
    message = request.SerializeToString()
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/inference.GRPCInferenceService/ModelInfer",
        b":authority": b"127.0.0.1",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    head = frame(HEADERS, END_HEADERS, b"".join(literal(*field) for field in fields.items()))
    return head, frame(DATA, END_STREAM, b"\0" + len(message).to_bytes(4, "big") + message)


@pytest.fixture(scope="module")
def daemon(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One worker and few slots: a slot that was lost would soon be missed."""
    text = configuration(artifacts, "spin", "mlp", workers=1, queue_slots=SLOTS)
    with nothing_left(running(tmp_path_factory.mktemp("daemon"), text)) as started:
        yield started


def leave_http(daemon: Daemon, point: str) -> None:
    data = json_query(LONG_TURNS if point == "in a block" else 1000, 1 << 22 if point == "half of the body" else 0)
    head = data.index(b"\r\n\r\n") + 4
    with connect(daemon.http) as client:
        if point == "before the head ended":
            client.sendall(data[: head - 3])
        elif point == "half of the body":
            client.sendall(data[: head + (len(data) - head) // 2])
        else:
            client.sendall(data)
        wait_for(daemon, point, client)


def leave_grpc(daemon: Daemon, point: str, how: str) -> None:
    head, message = grpc_query(LONG_TURNS if point == "in a block" else 1000)
    with connect(daemon.grpc) as client:
        client.sendall(PREFACE)
        if point == "before the head ended":
            client.sendall(head[:-5])
        elif point == "half of the body":
            client.sendall(head + message[: len(message) // 2])
        else:
            client.sendall(head + message)
        wait_for(daemon, point, client)
        if how == "reset" and point not in ("before the head ended", "half of the body"):
            client.sendall(frame(RST_STREAM, 0, (8).to_bytes(4, "big")))
            until("nobody's query to go", lambda: point == "waiting" or idle(daemon))


def wait_for(daemon: Daemon, point: str, client: socket.socket) -> None:
    """Until the query has come to the point at which its client leaves."""
    if point == "in a block":
        until("it to run", lambda: daemon.metric("veltair_queries_running", tenant="spin") > 0)
    elif point == "waiting":
        until("it to wait", lambda: daemon.metric("veltair_queue_depth", tenant="spin") > 0)
    elif point == "after the answer began":
        while spin_answer not in received(client):
            pass


spin_answer = b"state"


def received(client: socket.socket) -> bytes:
    """The next bytes, which stay unread."""
    return client.recv(1 << 16, socket.MSG_PEEK)


def idle(daemon: Daemon) -> bool:
    return daemon.metric("veltair_queries_held") == 0


def cancelled(daemon: Daemon) -> float:
    return daemon.metric("veltair_requests_total", tenant="spin", outcome="cancelled")


POINTS = ["before the head ended", "half of the body", "waiting", "in a block", "after the answer began"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("way", ["http", "grpc", "grpc reset"])
def test_who_leaves_costs_no_slot(rounds: Rounds, daemon: Daemon, point: str, way: str) -> None:
    """A client leaves at one of five points: its layers stop, it counts as cancelled, and no slot is lost."""
    how = way.partition(" ")[2]
    for _ in rounds(quick=1, full=40):
        before = cancelled(daemon)
        with triton_grpc.InferenceServerClient(daemon.grpc) as others:
            blocking: list[Any] = []
            if point == "waiting":  # behind a query that takes the worker
                call = others.async_infer("spin", spin(triton_grpc, LONG_TURNS, 1), lambda result, error: None)
                until("another to run", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
                blocking.append(call)
            for _ in range(SLOTS + 2 if point not in ("waiting", "in a block") else 2):
                if way == "http":
                    leave_http(daemon, point)
                else:
                    leave_grpc(daemon, point, how)
            for call in blocking:
                call.cancel()
            until("all slots to be free", lambda: idle(daemon))
            expected = {"waiting": 3, "in a block": 2}.get(point, 0)
            until("them to be counted", lambda b=before, e=expected: cancelled(daemon) == b + e)
            for number in range(SLOTS + 2):
                found = others.infer("spin", spin(triton_grpc, number, 5)).as_numpy("state")
                assert found.tolist() == [spin_state(number, 5)]
        with traffic(daemon) as asking:
            asking.served(50)
        assert set(asking.outcomes) == {"right"}, asking.outcomes
