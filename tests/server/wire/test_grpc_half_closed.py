"""Clients over gRPC that close their side of a connection behind their requests: they wait, or they have left."""

from __future__ import annotations

import socket

import pytest
from native_front import INFER, Fronts, encoded, run
from tritonclient.grpc import service_pb2 as pb
from wire_frames import frame, parse_frames

from veltair.grpc.http2 import frames, hpack

HEAD = [(":method", "POST"), (":scheme", "http"), (":path", INFER), ("content-type", "application/grpc")]
DATA = encoded()
PING = (frames.PING, 0, 0, bytes(8))


def call(number: int, *, ended: bool = True) -> bytes:
    """A request for sums, or all of it but the end."""
    head = frame(frames.HEADERS, frames.END_HEADERS, number, hpack.encode(HEAD))
    return head + frame(frames.DATA, frames.END_STREAM if ended else 0, number, frames.message_prefix(len(DATA)) + DATA)


def answers(received: bytes) -> dict[int, bytes]:
    """The sums by stream."""
    found: dict[int, bytes] = {}
    for kind, _, number, payload in parse_frames(received):
        if kind == frames.DATA and payload:
            found[number] = pb.ModelInferResponse.FromString(payload[5:]).raw_output_contents[0]
    return found


@pytest.mark.parametrize("python", [False, True], ids=["native", "python"])
def test_it_gets_all_its_answers(python: bool) -> None:
    async def test(fronts: Fronts) -> None:
        channel = fronts.channel(python=python)
        expected = (await fronts.learn(channel, DATA)).message.raw_output_contents[0]
        reader, writer = await fronts.connect(python=python)
        writer.write(call(1) + call(3) + call(5, ended=False) + call(7))
        writer.write_eof()
        assert answers(await reader.read()) == dict.fromkeys((1, 3, 7), expected)
        writer.close()

    run(test)


@pytest.mark.parametrize("python", [False, True], ids=["native", "python"])
@pytest.mark.parametrize("data", [b"", call(1, ended=False), call(1)[:-3]], ids=["nothing", "no end", "half"])
def test_one_that_waits_for_nothing_is_closed(python: bool, data: bytes) -> None:
    async def test(fronts: Fronts) -> None:
        await fronts.learn(fronts.channel(python=python), DATA)
        reader, writer = await fronts.connect(python=python)
        writer.write(data)
        writer.write_eof()
        assert answers(await reader.read()) == {}
        writer.close()

    run(test)


@pytest.mark.parametrize("leaves", [False, True], ids=["waits", "left"])
def test_a_ping_finds_out_whether_it_is_there(leaves: bool) -> None:
    async def test(fronts: Fronts) -> None:
        await fronts.learn(fronts.channel(), DATA)
        reader, writer = await fronts.connect()
        writer.write(call(1))
        held = await fronts.scripted.next()
        writer.write_eof()
        received = b""
        while PING not in parse_frames(received):  # before there is an answer
            received += await reader.read(1 << 12)
        if leaves:
            client: socket.socket = writer.get_extra_info("socket")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
            await fronts.scripted.until(lambda: fronts.scripted.aborted == [held.message.query])
        else:
            fronts.scripted.end(held)
            assert list(answers(received + await reader.read())) == [1]
            writer.close()

    run(test, automatic=False)
