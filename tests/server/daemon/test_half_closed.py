"""Clients that close their side behind their requests, of a daemon that has no I/O threads."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from running_daemon import X_AS_JSON, configuration, running
from traffic import connect

pytestmark = pytest.mark.slow

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
QUERY = HEAD % len(X_AS_JSON) + X_AS_JSON


def test_it_gets_all_its_answers(artifacts: Path, tmp_path: Path) -> None:
    with running(tmp_path, configuration(artifacts, "mlp", fronts=0)) as daemon:
        for data, count in ((GET, 1), (GET * 3, 3), (QUERY, 1), (GET + QUERY + GET, 3)):
            with connect(daemon.http) as client:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                received = b"".join(iter(lambda c=client: c.recv(1 << 16), b""))
            assert received.replace(INTERIM, b"", 1).count(b"HTTP/1.1 200 ") == count, received
        for data in (b"", GET[:-2], QUERY[:-3]):
            with connect(daemon.http) as client:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                assert b"".join(iter(lambda c=client: c.recv(1 << 16), b"")).removeprefix(INTERIM) == b""
