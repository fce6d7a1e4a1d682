"""Deadlines of requests with a plan: by the request's parameter and by grpc-timeout, passed or far away."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from native_front import INFER, Fronts, ask, encoded, run
from wire_frames import frame

from veltair.errors import RefusalReason
from veltair.grpc.http2 import frames, hpack


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
        assert (code, details) == ("4", RefusalReason.DEADLINE.text)
        await engine.until(lambda: engine.aborted == [held.message.query])
        assert engine.link.taken == 1
        engine.end(held, "cancelled")
        await fronts.settle()
        assert engine.link.taken == 0 and fronts.outcomes() == {"ok": 2, "deadline": 1}
        assert (await ask(channel, b"")).code is grpc.StatusCode.NOT_FOUND  # the thread lives

    run(body, automatic=False)


async def raw_call(fronts: Fronts, data: bytes, *fields: hpack.Field, python: bool = False) -> tuple[str, str]:
    """A call on a connection of its own, whose client has no timer. Returns status and text."""
    reader, writer = await fronts.connect(python=python)
    head = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", INFER),
        ("content-type", "application/grpc"),
        *fields,
    ]
    message = frames.message_prefix(len(data)) + data
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


@pytest.mark.parametrize(
    ("timeout", "code", "details"),
    [
        ("0n", "4", RefusalReason.LATE_ON_ARRIVAL.text),
        ("0H", "4", RefusalReason.LATE_ON_ARRIVAL.text),
        ("1n", "4", RefusalReason.LATE_ON_ARRIVAL.text),
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
        await fronts.learn(fronts.channel(), encoded())
        assert await raw_call(fronts, encoded(), ("grpc-timeout", timeout), *behind) == (code, details)
        assert fronts.scripted.count == (code == "0")

    run(body)


@pytest.mark.parametrize("timeout", ["99999999H", "99999999M"])
def test_a_deadline_far_away_fits_messages(timeout: str) -> None:
    async def body(fronts: Fronts) -> None:
        await fronts.learn(fronts.channel(), encoded())
        for python in (True, False):
            asked = asyncio.create_task(raw_call(fronts, encoded(), ("grpc-timeout", timeout), python=python))
            if not python:
                held = await fronts.scripted.next()
                assert held.message.deadline_ns is not None
                fronts.engine.deadlines.append(held.message.deadline_ns)
                fronts.scripted.end(held)
            assert await asked == ("0", "")
            deadline_ns = fronts.engine.deadlines[-1]
            assert deadline_ns is not None and 1 << 60 < deadline_ns < 1 << 63

    run(body, automatic=False)
