"""Traced queries of I/O threads: whose context they take, as Python does, and what they hand to Python."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from native_front import Fronts, ask, encoded, run
from native_http import HttpFronts, infer
from native_http import run as run_http
from scripted_engine import SUMS

from veltair.server.front.logs.access_log import ended_rows
from veltair.server.front.tracing.query_trace import QueryTrace
from veltair.server.front.tracing.query_traces import QueryTraces
from veltair.server.front.tracing.trace_context import read_traceparent, read_tracestate
from veltair.server.wire.ended_requests import shown_ids
from veltair.server.wire.thread_traces import MOST_TAKEN, ThreadTraces

KEPT_STATES = 1024  # of a thread: traces.h
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
VALID = [SAMPLED, f"00-{TRACE}-{PARENT}-ff", f"cc-{TRACE}-{PARENT}-01", f"cc-{TRACE}-{PARENT}-03-more"]
UNSAMPLED = [f"00-{TRACE}-{PARENT}-00", f"00-{TRACE}-{PARENT}-fe"]
NOT_VALID = [
    "",
    "00",
    SAMPLED[:-1],
    SAMPLED + "0",
    SAMPLED + "-more",
    SAMPLED.upper(),
    f"ff-{TRACE}-{PARENT}-01",
    f"0g-{TRACE}-{PARENT}-01",
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00_{TRACE}-{PARENT}-01",
    f"00-{TRACE}-{PARENT}-0x",
    f"cc-{TRACE}-{PARENT}-01x",
]


class Taken:
    """What the threads have traced, as `QueryTraces` makes whole traces of it."""

    def __init__(self, fronts: Fronts, ratio: float = 0.0) -> None:
        self.threads = ThreadTraces(fronts.threads, ratio)
        self.whole: list[QueryTrace] = []
        names = list(fronts.engine.tenants)
        self.traces = QueryTraces(self.whole.append, ratio, names.__getitem__, str, self.threads)

    def collect(self) -> list[tuple[str, str, int, str]]:
        """(trace, parent, query, id) of each that has ended since the last time."""
        found = []
        for ended in self.threads.take():
            columns = [ended[name].tolist() for name in ("trace", "parent", "query")]
            assert len(list(ended_rows(ended["ended"]))) == len(ended)
            for trace, parent, query, id_ in zip(*columns, shown_ids(ended["id"]), strict=True):
                found.append((trace.hex(), parent.hex(), query, id_))
            self.traces.add_ended(ended)
        return found


def metadata(traceparent: str) -> Any:
    return [("traceparent", traceparent)]


@pytest.mark.parametrize("value", [*VALID, *UNSAMPLED, *NOT_VALID])
def test_threads_read_a_context_as_python_does(value: str) -> None:
    async def over_grpc(fronts: Fronts) -> None:
        taken, channel = Taken(fronts), fronts.channel()
        await fronts.learn(channel, encoded())
        answer = await ask(channel, encoded(), metadata=metadata(value))
        assert answer.code is grpc.StatusCode.OK and fronts.asked_python == 1
        check(taken.collect())

    async def over_http(fronts: HttpFronts) -> None:
        taken, client = Taken(fronts.fronts), await fronts.client()
        await fronts.learn(client, infer())
        await client.ask(with_header(infer(), f"TraceParent:\t {value} " if value else "traceparent:"))
        assert fronts.fronts.asked_python == 1
        check(taken.collect())

    def check(found: Sequence[tuple[str, str, int, str]]) -> None:
        parent = read_traceparent([value])
        assert (parent is not None) == (value in VALID + UNSAMPLED)
        if parent is None or not parent.sampled:
            assert found == []
        else:
            [(trace, sender, query, _)] = found
            assert (int(trace, 16), int(sender, 16)) == (parent.trace_id, parent.parent_id) and query

    run(over_grpc)
    run_http(over_http)


def with_header(data: bytes, line: str) -> bytes:
    head, _, body = data.partition(b"\r\n\r\n")
    return head + f"\r\n{line}\r\n\r\n".encode() + body


def test_several_contexts_are_none() -> None:
    assert read_traceparent([SAMPLED, SAMPLED]) is None

    async def over_http(fronts: HttpFronts) -> None:
        taken, client = Taken(fronts.fronts), await fronts.client()
        await fronts.learn(client, infer())
        await client.ask(with_header(infer(), f"traceparent: {SAMPLED}\r\nTraceparent: {SAMPLED}"))
        assert taken.collect() == [] and fronts.fronts.asked_python == 1

    run_http(over_http)  # the stock client of gRPC sends one of them alone


STATES = [
    (["congo=t61rcWkgMzE"], "congo=t61rcWkgMzE"),
    (["a=1 ,b=2", "c=3"], "a=1,b=2,c=3"),
    (["", "a=1", ""], "a=1"),
    (["a=" + "x" * 256, "b=" + "x" * 251], "a=" + "x" * 256 + ",b=" + "x" * 251),
    (["a=" + "x" * 256, "b=" + "x" * 252, "c=1"], ""),
    (["x" * 600], ""),
    (["not valid"], ""),
]


@pytest.mark.parametrize(("values", "state"), STATES)
def test_threads_keep_what_a_callers_system_says_to_itself(values: list[str], state: str) -> None:
    """As Python reads it, for each query its own."""
    assert read_tracestate(values) == state

    async def over_grpc(fronts: Fronts) -> None:
        taken, channel = Taken(fronts), fronts.channel()
        await fronts.learn(channel, encoded())
        for own in (values, [], ["z=9"]):
            await ask(channel, encoded(), metadata=[*metadata(SAMPLED), *(("tracestate", each) for each in own)])
        check(taken)

    async def over_http(fronts: HttpFronts) -> None:
        taken, client = Taken(fronts.fronts), await fronts.client()
        await fronts.learn(client, infer())
        for own in (values, [], ["z=9"]):
            lines = [f"traceparent: {SAMPLED}", *(f"TraceState: \t{each} " for each in own)]
            await client.ask(with_header(infer(), "\r\n".join(lines)))
        check(taken)

    def check(taken: Taken) -> None:
        taken.collect()
        taken.traces.settle(last=True)
        assert [trace.context.state for trace in taken.whole] == [state, "", "z=9"]

    run(over_grpc)
    run_http(over_http)


def test_more_states_than_a_thread_keeps() -> None:
    """They go round, and each is that of its own query."""

    async def body(fronts: HttpFronts) -> None:
        taken, client = Taken(fronts.fronts), await fronts.client()
        await fronts.learn(client, infer())
        for number in range(KEPT_STATES + 5):
            await client.ask(with_header(infer(), f"traceparent: {SAMPLED}\r\ntracestate: a={number}"))
        taken.collect()
        taken.traces.settle(last=True)
        assert [trace.context.state for trace in taken.whole] == [f"a={number}" for number in range(KEPT_STATES + 5)]

    run_http(body)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_a_ratio_of_the_queries_without_a_context(ratio: float) -> None:
    async def body(fronts: HttpFronts) -> None:
        taken, client = Taken(fronts.fronts, ratio), await fronts.client()
        await fronts.learn(client, infer())
        for _ in range(100):
            await client.ask(infer())
            await client.ask(with_header(infer(), f"traceparent: {UNSAMPLED[0]}"))
        found = taken.collect()
        assert {(trace, parent) for trace, parent, _, _ in found} <= {("0" * 32, "0" * 16)}
        assert len(found) == 100 * ratio if ratio != 0.5 else 0 < len(found) < 100
        assert fronts.fronts.asked_python == 1

    run_http(body)


def test_without_tracing_nothing_is_kept_of_a_context() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, encoded())
        assert (await ask(channel, encoded(), metadata=metadata(SAMPLED))).code is grpc.StatusCode.OK
        assert Taken(fronts).collect() == []

    run(body)


def test_the_engine_is_told_which_queries_are_traced() -> None:
    async def body(fronts: Fronts) -> None:
        taken, channel = Taken(fronts), fronts.channel()
        await fronts.learn(channel, encoded(id="any"))
        fronts.scripted.automatic = False
        for context in ([], metadata(SAMPLED)):
            asked = asyncio.create_task(ask(channel, encoded(id="a7"), metadata=context))
            held = await fronts.scripted.next()
            assert held.message.traced == bool(context)
            fronts.scripted.end(held)
            await asked
        assert taken.collect() == [(TRACE, PARENT, held.message.query, "a7")]
        assert taken.whole == []  # its blocks have not come
        taken.traces.settle(last=True)
        [whole] = taken.whole
        assert (whole.tenant, whole.outcome, whole.request_id, whole.context.protocol) == ("sums", "ok", "a7", "grpc")
        assert sum(whole.stage_ns) == whole.end_ns - whole.arrival_ns

    run(body)


def test_a_refused_query_is_a_trace_without_blocks() -> None:
    async def body(fronts: HttpFronts) -> None:
        taken, client = Taken(fronts.fronts), await fronts.client()
        await fronts.learn(client, infer(request_id="any"))
        fronts.scripted.shut(SUMS, 1)
        traced = with_header(infer(request_id="a7"), f"traceparent: {SAMPLED}")
        assert (await client.ask(traced)).startswith(b"HTTP/1.1 503 ")
        assert taken.collect() == [(TRACE, PARENT, 0, "a7")]
        [whole] = taken.whole
        assert (whole.outcome, whole.reason, whole.stage_ns, whole.blocks) == ("overloaded", "overload", (), ())
        assert whole.context.protocol == "http" and whole.end_ns >= whole.arrival_ns

    run_http(body)


def test_what_nobody_takes_is_lost_and_counted() -> None:
    async def body(fronts: HttpFronts) -> None:
        taken, client = Taken(fronts.fronts), await fronts.client()
        await fronts.learn(client, infer())
        fronts.scripted.shut(SUMS, 1)
        client.send(with_header(infer(), f"traceparent: {SAMPLED}") * (MOST_TAKEN + 5))
        for _ in range(MOST_TAKEN + 5):
            assert (await client.answer()).startswith(b"HTTP/1.1 503 ")
        assert len(taken.collect()) == MOST_TAKEN and taken.threads.lost == 5
        assert taken.traces.lost == 5

    run_http(body)
