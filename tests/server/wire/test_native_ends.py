"""How requests with a plan end: refused, failed, late, cancelled, without their engine; and how they are counted."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import pytest
from native_front import EXECUTE_NS, QUEUE_NS, SLOTS, SUMS, WAIT_S, Answer, Fronts, ask, encoded, run

from veltair.grpc.http2 import frames, hpack
from veltair.server.front.admission import EXPIRED, READ, describe_full, describe_past_deadline
from veltair.server.wire.io_threads import TAKEN_AT_ONCE

Status = grpc.StatusCode
DATA = encoded()
LONG = "late: 99 % of 10 µs\n" + 24 * "Größe "  # all that a record has room for


async def settled(fronts: Fronts) -> None:
    """Return when the thread has read the ends that it was told of: an answer follows them on the same lane."""
    channel, data = fronts.channel(), encoded(model="two")
    asked = asyncio.create_task(ask(channel, data))
    fronts.scripted.end(await fronts.scripted.next())
    assert (await asked).code is Status.OK


def test_no_slot_is_free() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = [asyncio.create_task(ask(channel, DATA)) for _ in range(SLOTS)]
        held = [await fronts.scripted.next() for _ in asked]
        assert sorted(query.message.slot for query in held) == list(range(SLOTS))
        assert await ask(channel, DATA) == Answer(Status.UNAVAILABLE, describe_full(SLOTS))
        fronts.scripted.end(held.pop())
        again = asyncio.create_task(ask(channel, DATA))
        held.append(await fronts.scripted.next())
        for query in held:
            fronts.scripted.end(query)
        assert {answer.code for answer in await asyncio.gather(*asked, again)} == {Status.OK}
        assert fronts.scripted.link.taken == 0
        assert fronts.outcomes() == {"ok": SLOTS + 2, "overloaded": 1}

    run(body, automatic=False)


@pytest.mark.parametrize(
    ("outcome", "reason", "expected", "counted"),
    [
        ("rejected", LONG, Answer(Status.UNAVAILABLE, LONG), "overloaded"),
        ("rejected", "", Answer(Status.UNAVAILABLE, ""), "overloaded"),
        (
            "failed",
            'kernel "k" \\ ~ failed: 100 %41',
            Answer(Status.INTERNAL, 'kernel "k" \\ ~ failed: 100 %41'),
            "failed",
        ),
        ("worker_died", "worker 3 died", Answer(Status.INTERNAL, "worker 3 died"), "failed"),
        ("cancelled", "", Answer(Status.DEADLINE_EXCEEDED, "cancelled"), "deadline"),
    ],
)
def test_outcomes_of_the_engine(outcome: Any, reason: str, expected: Answer, counted: str) -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = asyncio.create_task(ask(channel, DATA))
        fronts.scripted.end(await fronts.scripted.next(), outcome, reason)
        assert await asked == expected
        assert fronts.scripted.link.taken == 0
        assert fronts.outcomes() == {"ok": 1, counted: 1}
        asked = asyncio.create_task(ask(channel, DATA))
        fronts.scripted.end(await fronts.scripted.next())
        assert (await asked).sums() == ([10.0], [104])

    run(body, automatic=False)


def test_a_cancelled_call_keeps_its_slot_until_the_engine_ends_it() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        await fronts.learn(channel, encoded(model="two"))
        engine = fronts.scripted
        held = []
        for leave in ("cancel", "disconnect", "deadline"):
            other = fronts.channel()
            call = other.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
                DATA, timeout=0.05 if leave == "deadline" else None
            )
            held.append(await engine.next())
            if leave == "cancel":
                call.cancel()
            elif leave == "disconnect":
                await other.close()
            await engine.until(lambda: len(engine.aborted) == len(held))
        assert engine.aborted == [query.message.query for query in held]
        assert engine.link.taken == len(held)
        for query, outcome in zip(held, ("cancelled", "done", "failed"), strict=True):
            engine.end(query, outcome)
        await settled(fronts)
        assert engine.link.taken == 0
        counts = fronts.outcomes()
        assert counts.pop("ok") == 1
        assert set(counts) <= {"cancelled", "deadline"} and counts["cancelled"] >= 2 and sum(counts.values()) == 3

    run(body, automatic=False)


@pytest.mark.parametrize("by", ["parameter", "grpc-timeout", "both"])
def test_a_deadline_passes_before_the_answer(by: str) -> None:
    async def body(fronts: Fronts) -> None:
        late, never = {"timeout": {"int64_param": "60000"}}, {"timeout": {"int64_param": "80000000"}}
        await fronts.learn(fronts.channel(), encoded(parameters=late))
        await fronts.learn(fronts.channel(), encoded(parameters=never))
        await fronts.learn(fronts.channel(), encoded(model="two"))
        channel, engine = fronts.channel(), fronts.scripted
        data = encoded(parameters=late if by == "parameter" else never)
        # The client's own timer would race with the server's: the header alone has no timer.
        header = () if by == "parameter" else (("grpc-timeout", "60m"),)
        asked = asyncio.create_task(raw_call(fronts, data, *header))
        held = await engine.next()
        deadline_ns = held.message.deadline_ns
        assert deadline_ns is not None and deadline_ns - held.message.arrival_ns == 60_000_000
        code, details = await asked
        assert (code, details) == ("4", EXPIRED)
        await engine.until(lambda: engine.aborted == [held.message.query])
        assert engine.link.taken == 1
        engine.end(held, "cancelled")
        await settled(fronts)
        assert engine.link.taken == 0 and fronts.outcomes() == {"ok": 2, "deadline": 1}
        assert (await ask(channel, b"")).code is Status.NOT_FOUND  # the thread lives

    run(body, automatic=False)


async def raw_call(fronts: Fronts, data: bytes, *fields: hpack.Field) -> tuple[str, str]:
    """A call on a connection of its own, whose client has no timer. Returns status and text."""
    host, _, port = fronts.native.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/inference.GRPCInferenceService/ModelInfer"),
        ("content-type", "application/grpc"),
        *fields,
    ]
    message = frames.message_prefix(len(data)) + data
    writer.write(frames.PREFACE + frame(frames.SETTINGS, 0, 0))
    writer.write(frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.encode(head)))
    writer.write(frame(frames.DATA, frames.END_STREAM, 1, message))
    decoder, found = hpack.Decoder(), dict[str, str]()
    while "grpc-status" not in found:
        first = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(first[:3], "big"))
        if first[3] == frames.HEADERS:
            found |= dict(decoder.decode(payload))
    writer.close()
    return found["grpc-status"], found.get("grpc-message", "")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@pytest.mark.parametrize(
    ("timeout", "code", "details"),
    [
        ("0n", "4", describe_past_deadline(READ)),
        ("0H", "4", describe_past_deadline(READ)),
        ("1n", "4", describe_past_deadline(READ)),
        ("99999999H", "0", ""),
        ("99999999S", "0", ""),
        ("123456789S", "13", "grpc-timeout '123456789S'"),
        ("x", "13", "grpc-timeout 'x'"),
        ("", "13", "grpc-timeout ''"),
        ("1x", "13", "grpc-timeout '1x'"),
        ("-1S", "13", "grpc-timeout '-1S'"),
    ],
)
@pytest.mark.parametrize("behind", [(), (("grpc-encoding", "identity"),)], ids=["alone", "with encoding"])
def test_grpc_timeout(timeout: str, code: str, details: str, behind: Any) -> None:
    async def body(fronts: Fronts) -> None:
        await fronts.learn(fronts.channel(), DATA)
        assert await raw_call(fronts, DATA, ("grpc-timeout", timeout), *behind) == (code, details)
        assert fronts.scripted.count == (code == "0")

    run(body)


def test_the_engine_leaves_and_another_comes() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        first = fronts.scripted
        asked = [asyncio.create_task(ask(channel, DATA)) for _ in range(3)]
        for _ in asked:
            await first.next()
        why = "the engine process ended (code -9) and took the query along: 100 %"
        first.leave(why)
        assert await asyncio.gather(*asked) == [Answer(Status.INTERNAL, why)] * 3
        assert fronts.outcomes() == {"ok": 1, "failed": 3}
        fronts.engine.ready, asked_python = False, fronts.asked_python
        assert (await ask(channel, DATA)).code is Status.OK and fronts.asked_python == asked_python + 1
        second = fronts.link(automatic=False)
        again = asyncio.create_task(ask(channel, encoded([[1, 1, 1, 1]])))
        held = await second.next()
        assert second.inputs(held)[0] == [[1, 1, 1, 1]] and held.message.slot == 0
        second.end(held)
        assert (await again).sums() == ([4.0], [104])

    run(body, automatic=False)


def test_what_a_dead_engine_says_reaches_nobody() -> None:
    async def body(fronts: Fronts) -> None:
        channel, first = fronts.channel(), fronts.scripted
        await fronts.learn(channel, DATA)
        other = asyncio.create_task(ask(channel, DATA))
        held = await first.next()
        first.leave("it ended")
        assert (await other).code is Status.INTERNAL
        second = fronts.link(automatic=False)
        again = asyncio.create_task(ask(channel, DATA))
        new = await second.next()
        stale = held._replace(message=new.message)
        second.end(held, "failed", "of another engine's query")  # an unknown number
        second.end(stale._replace(lane=new.lane))
        assert (await again).sums() == ([10.0], [104])

    run(body, automatic=False)


def test_while_closed_to_the_threads_python_answers() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        fronts.threads.set_open(False)
        await fronts.learn(channel, DATA)
        fronts.threads.set_open(True)
        assert (await ask(channel, DATA)).code is Status.OK and fronts.scripted.count == 1

    run(body)


def test_counts_are_what_happened() -> None:
    async def body(fronts: Fronts) -> None:
        channel, engine = fronts.channel(), fronts.scripted
        found: list[Any] = []
        fronts.threads._counted = found.append
        for batch in (1, 3):
            await fronts.learn(channel, encoded([[1, 2, 3, 4]] * batch, [[1, 2]] * batch))
        for batch, outcome in ((1, "done"), (3, "rejected"), (3, "done"), (1, "failed"), (1, "worker_died")):
            asked = asyncio.create_task(ask(channel, encoded([[1, 2, 3, 4]] * batch, [[1, 2]] * batch)))
            engine.end(await engine.next(), outcome)  # type: ignore[arg-type]
            await asked
        fronts.threads.drain_counts()
        (rows,) = found
        assert rows["batch"].tolist() == [1, 3, 3, 1, 1]
        assert rows["outcome"].tolist() == [0, 2, 0, 5, 5]  # ok, overloaded, failed
        assert set(rows["tenant"].tolist()) == {SUMS}
        assert set(rows["queue_ns"].tolist()) == {QUEUE_NS} and set(rows["execute_ns"].tolist()) == {EXECUTE_NS}
        assert (rows["duration_ns"] > 0).all() and (rows["end_ns"][1:] > rows["end_ns"][:-1]).all()
        fronts.threads.drain_counts()
        assert len(found) == 1 and TAKEN_AT_ONCE > 5

    run(body, automatic=False)


@pytest.mark.parametrize("threads", [1, 2])
def test_stopping_waits_for_queries_that_run(threads: int) -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = asyncio.create_task(ask(channel, DATA))
        held = await fronts.scripted.next()
        reader, writer = await idle_connection(fronts)
        stopping = asyncio.create_task(fronts.native.stop(WAIT_S))
        first = await reader.readexactly(9)  # every connection is told
        assert first[3] == frames.GOAWAY
        await reader.readexactly(int.from_bytes(first[:3], "big"))
        assert not stopping.done()
        fronts.scripted.end(held)
        assert (await asked).sums() == ([10.0], [104])
        await stopping
        assert await reader.read() == b""
        writer.close()
        assert fronts.service.metrics.tenants["sums"].outcomes["ok"] == 2
        with pytest.raises(ConnectionRefusedError):
            host, _, port = fronts.native.address.rpartition(":")
            socket.create_connection((host, int(port)))

    run(body, automatic=False, threads=threads)


async def idle_connection(fronts: Fronts) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An idle connection whose server's settings have been read."""
    host, _, port = fronts.native.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(frames.PREFACE + frame(frames.SETTINGS, 0, 0))
    while True:
        first = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(first[:3], "big"))
        if first[3] == frames.SETTINGS and first[4] & frames.ACK:
            return reader, writer


def test_what_runs_when_the_grace_is_over_is_cut_off() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, DATA)
        asked = [asyncio.create_task(ask(channel, DATA)) for _ in range(2)]
        for _ in asked:
            await fronts.scripted.next()
        await fronts.native.stop(0)
        for answer in await asyncio.gather(*asked):
            assert answer.code in (Status.INTERNAL, Status.UNAVAILABLE)

    run(body, automatic=False)
