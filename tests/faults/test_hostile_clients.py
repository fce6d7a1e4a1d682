"""Clients that send slowly, send nonsense, or leave: others are served, bit by bit as before."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from native_http import infer as http_request
from running_daemon import X, configuration, running, tensor
from traffic import connect, first_answer, leave, processes, traffic

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BATCH = 100  # damaged requests between two good ones


def test_many_who_send_slowly(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """1,000 connections that begin a request and do not go on: others are served, and each ends in time."""
    text = configuration(artifacts, "mlp") + "[server.limits]\nhead_s = 1.0\nbody_s = 1.0\n"
    begun = [b"POST /v2/models/mlp/infer HTT", http_request()[:-3], PREFACE[:10], PREFACE + b"\0\0\x04\x01"]
    with running(tmp_path, text) as daemon:
        for _ in rounds(quick=1, full=20):
            with ExitStack() as opened:
                slow = [opened.enter_context(connect((daemon.http, daemon.grpc)[n % 4 > 1])) for n in range(1000)]
                for n, client in enumerate(slow):
                    client.sendall(begun[n % 4])
                with traffic(daemon) as asking:
                    asking.served(500)
                for client in slow:
                    while client.recv(1 << 12):
                        pass
            assert set(asking.outcomes) == {"right"}, asking.outcomes


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The same with some bytes changed, left out, or twice."""
    found = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(found) or 1)
        size = chance.choice((1, 1, 2, 8, 64))
        kind = chance.randrange(4)
        if kind == 0:
            found[at : at + size] = chance.randbytes(size)
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            found[at:at] = found[at : at + size]
        else:
            found[at:] = b""
    return bytes(found)


def spoken(address: str) -> bytes:
    """What a stock client sends for one query, as bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        there = f"127.0.0.1:{listener.getsockname()[1]}"
        client = triton_grpc.InferenceServerClient(there)
        try:
            client.async_infer("mlp", [tensor(triton_grpc, "x", X, "FP32")], lambda result, error: None)
            heard, _ = listener.accept()
            with heard:
                heard.settimeout(30)
                heard.sendall(b"\0\0\0\4\0\0\0\0\0")
                data = b""
                while X.tobytes() not in data:
                    data += heard.recv(1 << 16)
                return data
        finally:
            client.close()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_damaged_requests_change_nothing(rounds: Rounds, artifacts: Path, tmp_path: Path, protocol: str) -> None:
    """A hundred damaged requests a round, each on a connection that then ends: the good one behind them is the same."""
    chance = random.Random(11)
    with running(tmp_path, configuration(artifacts, "mlp")) as daemon:
        expected, before = first_answer(daemon), processes(daemon)
        good = http_request(path="/v2/models/mlp/infer") if protocol == "http" else spoken(daemon.grpc)
        address = daemon.http if protocol == "http" else daemon.grpc
        for _ in rounds(quick=20, full=10_000 if protocol == "http" else 1000):
            for _ in range(BATCH):
                with connect(address) as client:
                    client.sendall(damaged(good, chance))
            assert np.array_equal(first_answer(daemon), expected)
        assert processes(daemon) == before


def test_queries_that_nobody_waits_for(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """Clients leave at any moment of a query: no slot is lost, and others are served."""
    chance = random.Random(5)
    with running(tmp_path, configuration(artifacts, "mlp", queue_slots=16)) as daemon:
        for _ in rounds(quick=1, full=100):
            with traffic(daemon) as asking:
                for _ in range(100):
                    leave(daemon, chance)
                asking.served(100)
            assert not asking.outcomes["wrong"] and not asking.outcomes["lost"], asking.outcomes
            with triton_http.InferenceServerClient(daemon.http) as client:  # as many slots as before
                inputs = [tensor(triton_http, "x", X, "FP32")]
                for _ in range(40):
                    client.infer("mlp", inputs)
            assert daemon.metric("veltair_queries_held") == 0
