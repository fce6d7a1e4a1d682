"""What is particular to the native sender, and when it is chosen."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest
import uvloop
from scripted_server import MS, ScriptedCall, ScriptedServer, failures, one_by_one, one_stream, play

from veltair.grpc.http2.frames import REFUSED_STREAM
from veltair.loadgen import native_sender, run_schedule
from veltair.loadgen.client import CallSettings, InferenceClient, Outcome
from veltair.loadgen.grpc_client import GrpcClient
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.native_sender import TEXTS, NativeRun
from veltair.loadgen.open_loop import ArrivalSchedule, RunCounts, Trace
from veltair.loadgen.shared_memory_client import SharedMemoryClient

OK, REFUSED, ERROR = Outcome.OK, Outcome.REFUSED, Outcome.ERROR


def all_at_once(count: int) -> ArrivalSchedule:
    zeros = np.zeros(count, np.int64)
    return ArrivalSchedule(zeros, zeros, zeros, (0, MS))


class RefusesSecond(ScriptedCall):
    """The second call of a connection is refused unread; the first is answered only then."""

    first: RefusesSecond

    def end_received(self) -> None:
        if self.number == 1:
            RefusesSecond.first = self
        elif self.number == 3:
            self.reset(REFUSED_STREAM)
            self.server.act(RefusesSecond.first)
        else:
            self.server.act(self)


def test_a_call_that_was_refused_unread_is_made_again() -> None:
    server = ScriptedServer(RefusesSecond)
    trace, _ = play("native", one_stream(["ok 1", "ok 2"]), one_by_one(2, 0.0), server=server)
    assert trace.outcome.tolist() == [OK, OK]
    assert server.requests == ["ok 1", "ok 2"]


def test_a_server_that_refuses_a_lone_call_is_not_asked_for_ever() -> None:
    trace, server = play("native", one_stream([f"reset {REFUSED_STREAM}"]), one_by_one(1, 0.0))
    assert failures(trace) == {"the call was reset with code 7": 1}
    assert len(server.requests) == 1


def test_the_first_texts_of_a_tenant_are_kept_and_all_are_counted() -> None:
    many = [f"status 13 text{i}" for i in range(TEXTS + 10)]
    texts = [*many, many[0], many[-1]]
    trace, _ = play("native", one_stream(texts), one_by_one(len(texts), 0.5))
    kept = Counter({f"INTERNAL text{i}": 1 for i in range(TEXTS)}) + Counter({"INTERNAL text0": 1})
    assert failures(trace) == kept + Counter({"INTERNAL (one of many texts)": 11})


def test_a_long_text_is_cut() -> None:
    trace, _ = play("native", one_stream([f"status 13 {'x' * 5000}"]), one_by_one(1, 0.0))
    assert failures(trace) == {f"INTERNAL {'x' * 291}": 1}


def test_progress_and_sizes_can_be_read() -> None:
    counts = RunCounts()
    seen: list[tuple[int, int]] = []
    server = ScriptedServer()
    server.on_request = lambda: seen.append((counts.sent, counts.done))

    async def run() -> tuple[NativeRun, Trace]:
        client = GrpcClient("127.0.0.1", await server.start(), 10.0)
        await client.open(2)
        sender = NativeRun(client.call_settings, one_stream(["ok"] * 20), one_by_one(20, 20.0), counts)
        trace = await sender.run(asyncio.Event())
        await client.close()
        server.close()
        return sender, trace

    sender, trace = uvloop.run(run())
    assert (counts.sent, counts.done) == (20, 20)
    assert seen == sorted(seen) and 0 < seen[0][0] < 20
    assert sender.records["bytes"].tolist() == [3] * 20
    assert trace.cpu_ns > 0


def test_a_cancelled_run_ends_at_once() -> None:
    """With a query in flight whose answer a stopped run would await for an hour."""
    server, arrived = ScriptedServer(), asyncio.Event()
    server.on_request = arrived.set

    async def run() -> None:
        client = GrpcClient("127.0.0.1", await server.start(), 3600.0)
        await client.open(1)
        run = NativeRun(client.call_settings, one_stream(["hang"], 3_600_000), one_by_one(1, 0.0), RunCounts())
        running = asyncio.create_task(run.run(asyncio.Event()))
        await arrived.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 60)
        assert failures_of(run) == [native_sender.QueryEnd.STOPPED]
        await client.close()
        server.close()

    uvloop.run(run())


def failures_of(run: NativeRun) -> list[int]:
    ends: list[int] = run.records["end"].tolist()
    return ends


def against(respond: Any, count: int, timeout_s: float) -> Trace:
    """Runs `count` queries against a plain TCP server, whose connections `respond` handles."""

    async def run() -> Trace:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        calls = CallSettings("grpc", "127.0.0.1", server.sockets[0].getsockname()[1], 1, timeout_s)
        trace = await NativeRun(calls, one_stream(["ok"]), all_at_once(count), RunCounts()).run(asyncio.Event())
        server.close()
        return trace

    return uvloop.run(run())


async def speak_http_1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" + bytes(100))
    writer.close()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(-1)
    writer.close()


def test_a_server_that_speaks_something_else() -> None:
    trace = against(speak_http_1, 3, 10.0)
    assert failures(trace) == {"it speaks no HTTP/2": 3}


def test_a_server_that_accepts_and_says_nothing() -> None:
    trace = against(say_nothing, 3, 0.1)
    assert failures(trace) == {"no answer within 0.1 s": 3}
    assert ((trace.done_ns - trace.sent_ns) >= 100 * MS).all()


def test_a_sender_that_is_behind_still_hears_of_a_stop() -> None:
    """All queries are due at once, and it takes them up without a pause: half a second of work."""
    count, counts = 2_000_000, RunCounts()

    async def run() -> Trace:
        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        calls = CallSettings("grpc", "127.0.0.1", server.sockets[0].getsockname()[1], 1, 0.1)
        stop = asyncio.Event()
        running = asyncio.create_task(NativeRun(calls, one_stream(["ok"]), all_at_once(count), counts).run(stop))
        while counts.sent == 0:
            await asyncio.sleep(0)
        stop.set()
        trace = await running
        server.close()
        return trace

    trace = asyncio.run(run())
    assert 0 < counts.sent < count
    assert counts.done == counts.sent == (trace.outcome == ERROR).sum() == sum(failures(trace).values())
    assert (trace.outcome[counts.sent :] == Outcome.UNSENT).all()


class ChosenError(Exception):
    pass


async def python_sender(*arguments: Any) -> Trace:
    raise ChosenError


def clients() -> dict[str, InferenceClient]:
    grpc, http = GrpcClient("127.0.0.1", 1, 1.0), HttpClient("127.0.0.1", 1, 1.0)
    return {"grpc": grpc, "http": http, "shared memory": SharedMemoryClient(http, "region", file=-1)}


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("client", [*clients(), "of a user"])
def test_queries_are_sent_natively_where_that_was_built(monkeypatch, client, built):
    native: list[CallSettings] = []

    class Run:
        def __init__(self, *arguments: Any) -> None:
            native.append(arguments[0])

        async def run(self, stop: asyncio.Event) -> None: ...

    monkeypatch.setattr(run_schedule, "run_open_loop", python_sender)
    monkeypatch.setattr(native_sender, "NativeRun", Run)
    monkeypatch.setattr(native_sender, "is_available", lambda: built)
    sending = run_schedule.run_schedule(clients().get(client), [], all_at_once(0), asyncio.Event())  # type: ignore[arg-type]
    if built and client in clients():
        asyncio.run(sending)
        assert [calls.protocol for calls in native] == ["grpc" if client == "grpc" else "http"]
    else:
        with pytest.raises(ChosenError):
            asyncio.run(sending)
