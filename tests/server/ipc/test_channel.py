"""Messages over a packet socket."""

from __future__ import annotations

import socket

import msgspec
import pytest

from veltair.server.ipc.channel import Channel, ChannelClosedError, socket_pair
from veltair.server.ipc.messages import AbortQuery, FromWorker, KernelFailed, ModelsLoaded, ToEngine


def channels() -> tuple[Channel[FromWorker], Channel[ToEngine]]:
    ours, theirs = socket_pair()
    for end in (ours, theirs):
        end.setblocking(False)
    return Channel(ours, FromWorker), Channel(theirs, ToEngine)


def test_messages_arrive_whole_in_order_and_typed() -> None:
    engine, worker = channels()
    worker.send(ModelsLoaded())
    worker.send(KernelFailed(1 << 62, "no memory"))
    assert engine.receive() == ModelsLoaded()
    assert engine.receive() == KernelFailed(1 << 62, "no memory")
    assert engine.receive() is None
    assert not engine.is_closed()
    engine.send(AbortQuery(9))
    assert worker.receive() == AbortQuery(9)
    with pytest.raises(msgspec.ValidationError):
        worker.send(AbortQuery(1))  # nothing that a worker says
        engine.receive()
    engine.close()
    worker.close()


def test_what_the_system_does_not_take_waits_and_keeps_its_order() -> None:
    engine, worker = channels()
    worker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for query in range(1, 2001):
        worker.send(KernelFailed(query, ""))
    assert worker.backlog
    received = []
    while len(received) < 2000:
        while (message := engine.receive()) is not None:
            assert isinstance(message, KernelFailed)
            received.append(message.query)
        worker.flush()
    assert received == list(range(1, 2001))
    assert not worker.backlog
    engine.close()
    worker.close()


def test_the_last_words_are_read_before_the_end_is_seen() -> None:
    engine, worker = channels()
    worker.send(ModelsLoaded())
    assert not engine.is_closed()
    worker.close()
    assert not engine.is_closed()
    assert engine.receive() == ModelsLoaded()
    assert engine.is_closed()
    with pytest.raises(ChannelClosedError):
        engine.receive()
    with pytest.raises(ChannelClosedError):
        engine.send(AbortQuery(1))
    engine.close()
