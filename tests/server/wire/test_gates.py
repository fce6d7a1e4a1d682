"""Requests that the I/O threads refuse in advance, since the engine has told that it would."""

from __future__ import annotations

import asyncio

import grpc
import native_http
import pytest
from native_front import INFER, Answer, Fronts, ask, encoded, run
from native_http import PLAIN, HttpFronts
from scripted_engine import SUMS, TWO
from tritonclient.grpc import service_pb2 as pb
from wire_frames import frame

from veltair.errors import OverloadedError, RefusalReason
from veltair.grpc.http2 import frames, hpack
from veltair.server.ipc.admission_gates import (
    AJAR_NS,
    GATE_WORDS,
    MOST_SHUT_NS,
    UNDECIDED,
    AdmissionGates,
    create_admission_gates,
)
from veltair.server.ipc.tenant_share import TenantShare

REFUSED = Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, RefusalReason.OVERLOAD.text)
HEAD = [(":method", "POST"), (":scheme", "http"), (":path", INFER), ("content-type", "application/grpc")]


def rows(count: int) -> bytes:
    return encoded([[1, 2, 3, 4]] * count, [[1, 2]] * count)


def test_a_shut_gate_refuses_queries_of_that_size_or_more() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        for count in (1, 2, 3):
            await fronts.learn(channel, rows(count))
        await fronts.learn(channel, encoded(model="two"))
        fronts.scripted.shut(SUMS, batch=2)
        assert [(await ask(channel, rows(count))) == REFUSED for count in (1, 2, 3)] == [False, True, True]
        assert (await ask(channel, encoded(model="two"))).code is grpc.StatusCode.OK
        assert fronts.scripted.count == 2 and fronts.scripted.link.taken == 0
        assert fronts.outcomes() == {"ok": 4, "overloaded": 2}
        assert fronts.service.metrics.tenants["sums"].refusals == {RefusalReason.OVERLOAD: 2}
        fronts.scripted.shut(SUMS, batch=1, until_ns=1)  # long ago
        assert (await ask(channel, rows(3))).code is grpc.StatusCode.OK

    run(body)


def test_threads_count_their_work_for_each_tenant() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        await fronts.learn(channel, rows(1))
        await fronts.learn(channel, encoded(model="two"))
        before = [fronts.scripted.work(tenant) for tenant in (SUMS, TWO)]
        assert (await ask(channel, rows(1))).code is grpc.StatusCode.OK
        fronts.scripted.shut(SUMS, batch=1)
        assert await ask(channel, rows(1)) == REFUSED
        after = [fronts.scripted.work(tenant) for tenant in (SUMS, TWO)]
        assert [now - then for then, now in zip(before, after, strict=True)] == [2, 0]

    run(body)


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    high, low, kind, _, number = frames.FRAME_HEAD.unpack(await reader.readexactly(frames.FRAME_HEAD.size))
    return kind, number, await reader.readexactly(high << 16 | low)


def test_a_gate_is_shut_for_a_level_and_those_that_go_after_it() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        asked = [encoded(parameters={"priority": {"int64_param": level}}) for level in (1, 3, 4, 0)]
        for data in asked:
            await fronts.learn(channel, data)
        fronts.scripted.shut(SUMS, batch=1, level=3)
        assert [(await ask(channel, data)) == REFUSED for data in asked] == [False, True, True, True]
        fronts.scripted.shut(SUMS, batch=1, until_ns=1)
        fronts.scripted.shut(SUMS, batch=1, level=4)
        assert [(await ask(channel, data)) == REFUSED for data in asked] == [False, False, True, False]
        assert (await ask(channel, encoded(model="two"))).code is grpc.StatusCode.OK

    run(body)


def test_a_large_message_is_refused_by_its_head() -> None:
    async def body(fronts: Fronts) -> None:
        await fronts.learn(fronts.channel(), rows(1))
        fronts.scripted.shut(SUMS, batch=1)
        reader, writer = await fronts.connect()
        message = frames.message_prefix(len(rows(1))) + rows(1)
        writer.write(frame(frames.HEADERS, frames.END_HEADERS, 1, hpack.encode(HEAD)))
        writer.write(frame(frames.DATA, 0, 1, message[:-1]))
        answer: list[hpack.Field] = []
        while (found := await next_frame(reader))[0] != frames.RST_STREAM:
            if found[0] == frames.HEADERS:
                answer += hpack.Decoder().decode(found[2])
        assert found[1:] == (1, bytes(4))
        assert ("grpc-message", RefusalReason.OVERLOAD.text) in answer
        writer.write(frame(frames.DATA, frames.END_STREAM, 1, message[-1:]))  # nobody wants it
        fronts.scripted.shut(SUMS, batch=1, until_ns=1)
        writer.write(frame(frames.HEADERS, frames.END_HEADERS, 3, hpack.encode(HEAD)))
        writer.write(frame(frames.DATA, frames.END_STREAM, 3, message))
        while (found := await next_frame(reader))[:2] != (frames.DATA, 3):
            assert found[0] != frames.GOAWAY
        writer.close()

    run(body)


def test_a_large_message_comes_once_its_query_is_wanted() -> None:
    async def body(fronts: Fronts) -> None:
        await fronts.learn(fronts.channel(), rows(1))
        large = pb.ModelInferRequest.FromString(rows(1))
        large.raw_input_contents[0] = bytes(1_000_000)
        message = large.SerializeToString()
        sent = (frames.message_prefix(len(message)) + message)[:60_000]
        reader, writer = await fronts.connect()

        async def begin(number: int) -> list[tuple[int, int, bytes]]:
            """What comes for a call whose message has begun, until a window or its end."""
            writer.write(frame(frames.HEADERS, frames.END_HEADERS, number, hpack.encode(HEAD)))
            writer.write(frame(frames.DATA, 0, number, sent))
            found = [await next_frame(reader)]
            while found[-1][1] != number or found[-1][0] not in (frames.WINDOW_UPDATE, frames.RST_STREAM):
                found.append(await next_frame(reader))
            return [each for each in found if each[1] == number]

        update = (frames.WINDOW_UPDATE, 1, frames.WORD.pack(5 + len(message)))
        assert await begin(1) == [update]
        fronts.scripted.shut(SUMS, batch=1)
        assert [kind for kind, _, _ in await begin(3)] == [frames.HEADERS, frames.RST_STREAM]
        writer.close()

    run(body)


def test_a_body_over_http_is_refused_by_its_head_and_not_kept() -> None:
    async def test(fronts: HttpFronts) -> None:
        client = await fronts.client()
        expected = await fronts.learn(client, PLAIN)
        fronts.scripted.shut(SUMS, batch=1)
        client.send(PLAIN[:-5])
        answer = await client.answer()
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n")
        assert RefusalReason.OVERLOAD.text.encode() in answer
        client.send(PLAIN[-5:-2])
        fronts.scripted.shut(SUMS, batch=1, until_ns=1)
        assert await client.ask(PLAIN[-2:] + PLAIN) == expected
        assert fronts.scripted.count == 1

    native_http.run(test)


def test_how_long_and_for_what_a_gate_is_shut() -> None:
    gates = AdmissionGates(create_admission_gates(2), 2)

    def shut(now_ns: int) -> list[int]:
        return [batch for batch in range(1, 6) if gates.is_shut(0, batch, now_ns)]

    assert shut(0) == []
    gates.shut(0, 4, now_ns=100, for_ns=50)
    assert (shut(100), shut(149), shut(150)) == ([4, 5], [4, 5], [])
    gates.shut(0, 5, now_ns=110, for_ns=1000)  # says nothing of smaller ones
    assert (shut(149), shut(150)) == ([4, 5], [])
    gates.shut(0, 2, now_ns=120, for_ns=10)
    assert (shut(129), shut(130)) == ([2, 3, 4, 5], [])
    gates.shut(0, 3, now_ns=200, for_ns=10**12)
    assert (shut(200 + MOST_SHUT_NS - 1), shut(200 + MOST_SHUT_NS)) == ([3, 4, 5], [])
    assert not gates.is_shut(1, 5, 200)


def test_a_gate_that_is_ajar_lets_through_as_many_as_are_decided() -> None:
    async def body(fronts: Fronts) -> None:
        channel = fronts.channel()
        for count in (1, 2):
            await fronts.learn(channel, rows(count))
        fronts.scripted.set_ajar(SUMS, batch=2)
        asked = [asyncio.ensure_future(ask(channel, rows(2))) for _ in range(10)]
        done = await asyncio.gather(*asked)
        assert [answer == REFUSED for answer in done].count(False) == UNDECIDED
        assert await ask(channel, rows(2)) == REFUSED
        assert (await ask(channel, rows(1))).code is grpc.StatusCode.OK  # needs no pass
        for admitted in (False, True):
            fronts.scripted.decided(SUMS, admitted=admitted)
            for _ in range(1 + admitted):
                assert (await ask(channel, rows(2))).code is grpc.StatusCode.OK
            assert await ask(channel, rows(2)) == REFUSED

    run(body)


def test_when_a_gate_is_ajar() -> None:
    gates = AdmissionGates(create_admission_gates(1), 1)
    gates.shut(0, 1, now_ns=100, for_ns=10, priority_level=3)
    assert [gates.is_shut(0, 1, now_ns, 3) for now_ns in (109, 110, 110 + AJAR_NS)] == [True, False, False]
    gates._words[GATE_WORDS * 2 + 4] += UNDECIDED  # so many have passed
    gates.decided(0, 109, 3, admitted=False)  # it was on its way when the gate was shut
    assert [gates.is_shut(0, 1, now_ns, 3) for now_ns in (110, 109 + AJAR_NS, 110 + AJAR_NS)] == [True, True, False]
    assert not gates.is_shut(0, 1, 110, 4) and not gates.is_shut(0, 1, 110, 2)
    gates.decided(0, 110, 3, admitted=False)
    assert not gates.is_shut(0, 1, 110, 3)


def test_a_rate_lets_queries_pass_again_also_those_that_python_sends() -> None:
    async def body(fronts: Fronts) -> None:
        fronts.link(shares=[TenantShare(rate=1.0, burst=1), TenantShare(), TenantShare(), TenantShare()])
        link, second_ns = fronts.scripted.link, 1_000_000_000
        for now_ns in range(5 * second_ns, 15 * second_ns, second_ns):  # more than 32 bits hold
            link.give_back(SUMS, link.take(SUMS, now_ns))
            with pytest.raises(OverloadedError, match=RefusalReason.RATE.text):
                link.take(SUMS, now_ns)

    run(body)


def test_a_tenant_that_asks_too_often_is_refused_and_others_are_not() -> None:
    async def body(fronts: Fronts) -> None:
        slow = TenantShare(rate=1e-3, burst=2)
        fronts.link(shares=[slow, TenantShare(), TenantShare(), TenantShare()])
        channel = fronts.channel()
        await fronts.learn(channel, rows(1))
        await fronts.learn(channel, encoded(model="two"))
        spent = Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, RefusalReason.RATE.text)
        answers = [await ask(channel, rows(1)) for _ in range(4)]
        assert [answer == spent for answer in answers] == [False, False, True, True]
        assert (await ask(channel, encoded(model="two"))).code is grpc.StatusCode.OK
        assert fronts.outcomes() == {"ok": 3, "overloaded": 2}
        assert fronts.service.metrics.tenants["sums"].refusals == {RefusalReason.RATE: 2}
        assert fronts.scripted.link.taken == 0

    run(body)


def test_what_is_refused_for_a_while_needs_no_pass_afterwards() -> None:
    gates = AdmissionGates(create_admission_gates(tenants=2), tenants=2)
    gates.shut(1, batch=4, now_ns=1_000, for_ns=500)
    gates.refuse(1, now_ns=1_400, for_ns=400)
    assert [gates.is_shut(1, batch=1, now_ns=now_ns) for now_ns in (1_500, 1_799, 1_800)] == [True, True, False]
    assert not gates.is_shut(1, batch=4, now_ns=1_800) and not gates.is_shut(0, batch=1, now_ns=1_500)
    gates.shut(1, batch=1, now_ns=2_000, for_ns=500)
    gates.refuse(1, now_ns=2_100, for_ns=0)  # nobody decides about them any more, which would open the gate
    assert not gates.is_shut(1, batch=1, now_ns=2_100)
    gates.refuse(1, now_ns=3_000, for_ns=10 * MOST_SHUT_NS)
    assert not gates.is_shut(1, batch=1, now_ns=3_000 + MOST_SHUT_NS)
