"""Both senders of queries over HTTP, the one in Python and the native one, against a server that follows a script.

The body of a request says what the server does with it: `ok`; `status NUMBER TEXT`; `raw TEXT` (writes just that);
`hang`; `hold` (answered by `release`); `drop` (closes the connection); `half` (closes it in the middle of the answer);
`close` (says that it closes it); `tired` (closes it after the answer, unsaid); `slow` (the answer in single bytes).
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import MS, SENDERS, WAIT_S, failures, one_by_one, run_load, send_native
from sender_checks import check_a_stop, check_mixture

from veltair.loadgen.client import Outcome
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.open_loop import ArrivalSchedule, Trace
from veltair.loadgen.tenant_streams import TenantStream

OK, REFUSED, ERROR, UNSENT = Outcome.OK, Outcome.REFUSED, Outcome.ERROR, Outcome.UNSENT
TIMEOUT_S = 1.0
EXPECTED = {
    "ok": (OK, ""),
    "slow": (OK, ""),
    "close": (OK, ""),
    "status 503 queue full": (REFUSED, "503 queue full"),
    "status 504 too late": (REFUSED, "504 too late"),
    "status 500 a\ndefect of ü": (ERROR, "500 a defect of ü"),
    "raw HTTP/1.1 204 No Content\r\n\r\n": (ERROR, "204 "),
    "raw HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\nplain": (ERROR, "502 plain"),
    "raw HTTP/1.0 404 Not Found\r\ncontent-length:0\r\n\r\n": (ERROR, "404 "),
    "raw SSH-2.0-OpenSSH": (ERROR, "not HTTP: b'SSH-2.0-OpenSSH'"),
    "raw HTTP/2 200\r\n\r\n": (ERROR, "not an HTTP status line: b'HTTP/2 200'"),
    "raw HTTP/1.1 200 OK\r\n\r\n": (ERROR, "an answer without content-length"),
    "raw HTTP/1.1 200 OK\r\nContent-Length:-1\r\n\r\n": (ERROR, "content-length: b'-1'"),
    "raw HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc": (ERROR, "more bytes than content-length"),
    "drop": (ERROR, "connection closed before an answer"),
    "half": (ERROR, "connection closed in the middle of an answer"),
    "hang": (ERROR, "no answer within 1 s"),
}


class ScriptedHttp:
    def __init__(self) -> None:
        self.requests: list[str] = []
        self.held: list[asyncio.StreamWriter] = []
        self.connections = 0
        self.on_request: Callable[[], object] = lambda: None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 22)
        port: int = self._listening.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        self._listening.close()
        for task in self._serving:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        text = body.decode().rstrip("\0")
        self.requests.append(text)
        verb, _, rest = text.partition(" ")
        stays = True
        match verb:
            case "ok":
                writer.write(answer(200))
            case "slow":
                for byte in answer(200):
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)
            case "status":
                number, _, why = rest.partition(" ")
                writer.write(answer(int(number), json.dumps({"error": why}).encode()))
            case "raw":
                writer.write(rest.encode())
            case "close":
                writer.write(answer(200, fields=b"Connection: close\r\n"))
                stays = False
            case "tired":
                writer.write(answer(200))
                stays = False
            case "half":
                writer.write(answer(200, bytes(1000))[:500])
                stays = False
            case "drop":
                stays = False
            case "hold":
                self.held.append(writer)
        self.on_request()
        return stays

    def release(self) -> None:
        for writer in self.held:
            writer.write(answer(200))
        self.held.clear()


def answer(status: int, body: bytes = b"abc", fields: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d Some reason\r\n%bcontent-LENGTH: %d\r\n\r\n%b" % (status, fields, len(body), body)


sender = pytest.mark.parametrize("sender", list(SENDERS))


def one_stream(texts: Sequence[str], padding: int = 0, target_ms: float = 10.0) -> list[TenantStream]:
    bodies = [text.encode() + bytes(padding) for text in texts]
    requests = tuple(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(b), b) for b in bodies)
    return [TenantStream("a", 1.0, round(target_ms * MS), 0.95, requests)]


def play(
    sender: str,
    streams: list[TenantStream],
    schedule: ArrivalSchedule,
    *,
    timeout_s: float = WAIT_S,
    connections: int = 1,
    before: Callable[[ScriptedHttp, asyncio.Event], Any] = lambda server, stop: None,
) -> tuple[Trace, ScriptedHttp]:
    """Run a load against a scripted server; `before` may prepare it once the client is connected."""
    server = ScriptedHttp()
    return run_load(HttpClient, server, sender, streams, schedule, timeout_s, connections, before), server


@sender
@pytest.mark.parametrize("text", EXPECTED)
def test_each_end_is_one_outcome_and_harms_no_other_query(sender, text):
    gap_ms = 300.0 if text == "drop" else 5.0  # it is to find an idle connection
    trace, server = play(sender, one_stream(["ok", text, "ok"]), one_by_one(3, gap_ms), timeout_s=TIMEOUT_S)
    outcome, why = EXPECTED[text]
    assert trace.outcome.tolist() == [OK, outcome, OK]
    assert failures(trace) == ({why: 1} if why else {})
    retried = 2 if text == "drop" else 1  # a kept-alive connection may have been closed as idle
    assert Counter(server.requests) == Counter(["ok", "ok"]) + Counter({text: retried})


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(list(EXPECTED)), min_size=1, max_size=40), st.integers(1, 5), st.floats(0, 2))
def test_any_mixture_is_counted_exactly(texts, connections, gap_ms):
    schedule = one_by_one(len(texts), gap_ms)
    trace, server = play("native", one_stream(texts), schedule, connections=connections, timeout_s=TIMEOUT_S)
    check_mixture(trace, [EXPECTED[text] for text in texts], TIMEOUT_S)
    assert set(server.requests) == set(texts)


@sender
def test_a_connection_that_was_closed_as_idle_costs_no_query(sender):
    trace, server = play(sender, one_stream(["tired"] * 20), one_by_one(20, 2.0))
    assert trace.outcome.tolist() == [OK] * 20
    assert server.connections >= 20


@sender
def test_connections_are_used_again(sender):
    """One query after the other: the client's own connection, and that of the native sender."""
    trace, server = play(sender, one_stream(["ok"] * 20), one_by_one(20, 20.0))
    assert (trace.outcome == OK).all()
    assert server.connections < 10


@sender
def test_the_loop_is_open(sender):
    """No query is answered before all have arrived: a sender that waited would never end."""

    def before(server: ScriptedHttp, stop: asyncio.Event) -> None:
        server.on_request = lambda: server.release() if len(server.requests) == 100 else None

    trace, server = play(sender, one_stream(["hold"] * 100), one_by_one(100, 1.0), before=before, connections=3)
    assert (trace.outcome == OK).all()
    assert server.connections >= 100
    assert trace.done_ns.min() >= trace.sent_ns.max()


@sender
def test_large_requests_leave_whole(sender):
    trace, server = play(sender, one_stream(["ok"] * 8, padding=3_000_000), one_by_one(8, 0.0))
    assert trace.outcome.tolist() == [OK] * 8
    assert server.requests == ["ok"] * 8


@sender
def test_nobody_listens_any_more(sender):
    """The connection that is left belongs to the client."""
    trace, _ = play(sender, one_stream(["ok"] * 4), one_by_one(4, 1.0), before=lambda server, stop: server.close())
    assert trace.outcome.tolist() == [ERROR] * 4
    assert all("refused" in why.lower() or "closed" in why or "connect" in why.lower() for why in failures(trace))


@sender
def test_a_stop_sends_nothing_more_and_waits_as_long_as_the_longest_target(sender):
    check_a_stop(partial(play, sender), one_stream)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_bytes_do_more_than_break_the_answer(data, cuts):
    """Any bytes in place of an answer, in any pieces: an outcome, and nothing else."""

    async def run() -> Trace:
        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
            for start, stop in pairwise(edges):
                writer.write(data[start:stop])
                await asyncio.sleep(0)
            writer.close()

        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        client = HttpClient("127.0.0.1", server.sockets[0].getsockname()[1], 10.0)
        await client.open(1)
        trace = await send_native(client, one_stream(["ok"]), one_by_one(1, 1.0), asyncio.Event())
        await client.close()
        server.close()
        return trace

    assert asyncio.run(run()).outcome.tolist() == [ERROR]
