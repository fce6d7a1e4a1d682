"""Both senders of gRPC queries, the one in Python and the native one, against a server that follows a script."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import MS, SENDERS, ScriptedServer, failures, one_by_one, one_stream, play
from sender_checks import check_a_stop, check_mixture

from veltair.grpc.http2 import stream_table as http2_stream_table
from veltair.grpc.http2.frames import message_prefix
from veltair.loadgen.client import Outcome
from veltair.loadgen.grpc_client import SERVICE, GrpcClient
from veltair.loadgen.open_loop import ArrivalSchedule, RunCounts, Trace, draw_schedule
from veltair.loadgen.tenant_streams import TenantStream

OK, REFUSED, ERROR, UNSENT = Outcome.OK, Outcome.REFUSED, Outcome.ERROR, Outcome.UNSENT
TIMEOUT_S = 1.0
EXPECTED = {
    "ok": (OK, ""),
    "status 0 fine": (OK, ""),
    "status 14 queue%20full": (REFUSED, "UNAVAILABLE queue full"),
    "status 8": (REFUSED, "RESOURCE_EXHAUSTED "),
    "status 4 100%25 of%20%C3%BCnits": (REFUSED, "DEADLINE_EXCEEDED 100% of ünits"),
    "status 13 a%0Adefect": (ERROR, "INTERNAL a defect"),
    "status 17": (ERROR, "HTTP status 200, no status of gRPC"),
    "status 013": (ERROR, "HTTP status 200, no status of gRPC"),
    "http 502": (ERROR, "HTTP status 502, no status of gRPC"),
    "reset 2": (ERROR, "the call was reset with code 2"),
    "overlong": (ERROR, "an answer of 2147483648 bytes was announced"),
    "hang": (ERROR, "no answer within 1 s"),
}
sender = pytest.mark.parametrize("sender", list(SENDERS))


@sender
@pytest.mark.parametrize("request_text", EXPECTED)
def test_each_end_is_one_outcome_and_harms_no_other_query(sender, request_text):
    trace, server = play(sender, one_stream(["ok", request_text, "ok"]), one_by_one(3, 5.0), timeout_s=TIMEOUT_S)
    outcome, why = EXPECTED[request_text]
    assert trace.outcome.tolist() == [OK, outcome, OK]
    assert failures(trace) == ({why: 1} if why else {})
    assert server.requests == ["ok", request_text, "ok"]
    assert len(server.connections) == (1 if sender == "python" else 2)  # the client has one of its own


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(list(EXPECTED)), min_size=1, max_size=40), st.integers(1, 5), st.floats(0, 2))
def test_any_mixture_is_counted_exactly(texts, connections, gap_ms):
    schedule = one_by_one(len(texts), gap_ms)
    trace, server = play("native", one_stream(texts), schedule, connections=connections, timeout_s=TIMEOUT_S)
    check_mixture(trace, [EXPECTED[text] for text in texts], TIMEOUT_S)
    assert Counter(server.requests) == Counter(texts)
    assert len(server.aborted) == texts.count("hang") + texts.count("overlong")  # cancelled, so that the server stops


@sender
def test_each_tenant_has_connections_of_its_own(sender):
    streams = [*one_stream(["ok a"]), *one_stream(["ok b"])]
    owners = np.array([0, 1] * 6)
    arrival_ns = np.arange(12) * MS
    schedule = ArrivalSchedule(arrival_ns, owners, np.zeros(12, np.int64), (0, 12 * MS))
    _, server = play(sender, streams, schedule, connections=3)
    assert Counter(map(tuple, server.requests_by_connection.values())) == {("ok a",) * 2: 3, ("ok b",) * 2: 3}


@sender
def test_reasons_of_the_warm_up_are_not_counted(sender):
    texts = ["status 13 cold", "status 8 full", "status 8 full"]
    schedule = replace(one_by_one(3, 5.0), window_ns=(5 * MS, 15 * MS))
    trace, _ = play(sender, one_stream(texts), schedule)
    assert trace.outcome.tolist() == [ERROR, REFUSED, REFUSED]
    assert failures(trace) == {"RESOURCE_EXHAUSTED full": 2}


@sender
@pytest.mark.parametrize("end", ["drop", "half"])
def test_a_lost_connection_costs_its_calls_and_is_made_anew(sender, end):
    texts = ["hang", "hang", end, "ok", "ok"]
    arrival_ns = np.array([0, 0, 0, 600, 600], np.int64) * MS
    schedule = ArrivalSchedule(arrival_ns, np.zeros(5, np.int64), np.arange(5), (0, 601 * MS))
    trace, server = play(sender, one_stream(texts), schedule)
    assert trace.outcome.tolist() == [ERROR, ERROR, ERROR, OK, OK]
    assert failures(trace) == {"the connection was lost": 3}
    assert server.requests == texts


@sender
def test_a_server_that_leaves_gets_the_next_calls_over_a_new_connection(sender):
    trace, server = play(sender, one_stream(["hold", "leave", "ok"]), one_by_one(3, 300.0), before=release_at(3))
    assert trace.outcome.tolist() == [OK] * 3
    assert server.requests == ["hold", "leave", "ok"]


def release_at(count: int) -> Any:
    def before(server: ScriptedServer, stop: asyncio.Event) -> None:
        server.on_request = lambda: server.release() if len(server.requests) == count else None

    return before


@sender
def test_nobody_listens_any_more(sender):
    trace, _ = play(sender, one_stream(["ok"] * 4), one_by_one(4, 1.0), before=lambda server, stop: server.close())
    assert trace.outcome.tolist() == [ERROR] * 4
    assert all("refused" in why.lower() or "lost" in why for why in failures(trace))


@sender
def test_the_loop_is_open(sender):
    """No query is answered before all have arrived: a sender that waited would never end."""
    a, b = one_stream([f"hold a{i}" for i in range(5)]) + one_stream(["hold b"])
    streams = [replace(a, qps=900.0), replace(b, qps=300.0)]
    schedule = draw_schedule(streams, 1.0, 1, 0.05, 0.15)
    count = len(schedule.arrival_ns)
    assert count > 100
    trace, server = play(sender, streams, schedule, before=release_at(count), connections=3)
    assert (trace.outcome == OK).all()
    expected = [streams[s].requests[r][5:].decode() for s, r in zip(schedule.stream, schedule.request, strict=True)]
    assert Counter(server.requests) == Counter(expected)
    assert (trace.sent_ns >= schedule.arrival_ns).all()
    assert trace.done_ns.min() >= schedule.arrival_ns[-1]


@sender
def test_a_run_without_a_single_arrival_lasts_as_long_as_its_window(sender):
    trace, _ = play(sender, one_stream(["ok"]), one_by_one(0, 1.0, window_ms=5.0))
    assert len(trace.outcome) == 0
    assert trace.window_ns == (0, 5 * MS)


@sender
def test_a_stop_sends_nothing_more_and_waits_as_long_as_the_longest_target(sender):
    check_a_stop(partial(play, sender), one_stream)


@sender
def test_an_answer_within_the_longest_target_after_a_stop_counts(sender):
    def before(server: ScriptedServer, stop: asyncio.Event) -> None:
        def stop_then_answer() -> None:
            stop.set()
            asyncio.get_running_loop().call_later(0.05, server.release)

        server.on_request = stop_then_answer

    hour = ArrivalSchedule(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), (0, 3_600_000 * MS))
    trace, _ = play(sender, one_stream(["hold"], target_ms=20_000), hour, before=before)
    assert trace.outcome.tolist() == [OK]


@sender
def test_small_windows_delay_a_request_and_lose_nothing(sender, monkeypatch):
    monkeypatch.setattr(http2_stream_table, "REQUEST_WINDOW_BYTES", 1000)
    texts = [f"ok {'x' * size}" for size in (0, 10, 985, 1000, 30_000, 100_000)]
    trace, server = play(sender, one_stream(texts), one_by_one(6, 0.0))
    assert trace.outcome.tolist() == [OK] * 6
    assert sorted(server.requests) == sorted(texts)


@sender
def test_no_more_calls_at_once_than_a_server_of_grpcio_takes(sender):
    running = most = 0

    async def handler(request: bytes, context: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return request * 5

    async def run() -> Trace:
        server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 3)])
        methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(handler)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        client = GrpcClient("127.0.0.1", port, 20.0)
        await client.open(1)
        streams = [TenantStream("a", 1.0, MS, 0.95, tuple(message_prefix(n) + bytes(n) for n in (0, 7, 100_000)))]
        schedule = ArrivalSchedule(
            np.zeros(30, np.int64), np.zeros(30, np.int64), np.arange(30, dtype=np.int64) % 3, (0, MS)
        )
        counts = RunCounts()
        trace = await SENDERS[sender](client, streams, schedule, asyncio.Event(), counts)
        assert (counts.sent, counts.done) == (30, 30)
        await client.close()
        await server.stop(0)
        return trace

    assert (uvloop.run(run()).outcome == OK).all()
    assert 1 <= most <= 3
