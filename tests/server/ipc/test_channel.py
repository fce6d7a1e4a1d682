"""Messages over a packet socket."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

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


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def file_with(content: bytes) -> int:
    descriptor = os.memfd_create("file")
    os.write(descriptor, content)
    return descriptor


def test_descriptors_come_with_their_message_and_are_closed_unless_taken() -> None:
    engine, worker = channels()
    count = descriptors()
    files = [file_with(b"one"), file_with(b"two")]
    worker.send(ModelsLoaded(), files)
    worker.send(ModelsLoaded())
    worker.send(ModelsLoaded(), files)
    worker.send(ModelsLoaded(), files)
    for file in files:
        os.close(file)
    engine.receive()
    taken = engine.take_descriptors()
    assert [os.pread(file, 3, 0) for file in taken] == [b"one", b"two"]
    assert not any(os.get_inheritable(file) for file in taken)
    assert not engine.take_descriptors()
    engine.receive()
    assert not engine.take_descriptors()
    engine.receive()  # two that nobody takes
    engine.receive()  # and two more, until the end
    assert descriptors() == count + 4
    engine.close()
    for file in taken:
        os.close(file)
    worker.close()
    assert descriptors() == count - 2


def test_descriptors_wait_with_their_message() -> None:
    engine, worker = channels()
    worker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    count = descriptors()
    for number in range(200):
        file = file_with(b"%d" % number)
        worker.send(KernelFailed(number, ""), [file])
        os.close(file)
    assert 10 < len(worker.backlog) == descriptors() - count
    for number in range(100):
        message = engine.receive()
        assert isinstance(message, KernelFailed)
        assert message.query == number
        [file] = engine.take_descriptors()
        assert os.pread(file, 9, 0) == b"%d" % number
        os.close(file)
        worker.flush()
    engine.close()
    with pytest.raises(ChannelClosedError):
        worker.flush()
    assert descriptors() == count - 1  # the engine's end
    worker.close()


def test_a_process_with_too_many_open_files_gets_the_message_alone() -> None:
    engine, worker = channels()
    file = file_with(b"one")
    worker.send(ModelsLoaded(), [file])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (file + 1, before[1]))
    try:
        assert engine.receive() == ModelsLoaded()
        assert not engine.take_descriptors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    os.close(file)
    engine.close()
    worker.close()


def test_any_number_of_descriptors_is_passed_before_the_first_message() -> None:
    ours, theirs = socket_pair()
    sender, receiver = Channel(ours, FromWorker), Channel(theirs, ToEngine)
    own = [os.eventfd(number) for number in range(1, 21)]
    sender.pass_descriptors([*own, own[0]])
    sender.send(AbortQuery(9))
    passed = receiver.receive_passed()
    assert list(passed) == own
    assert not set(passed.values()) & set(own)
    assert [os.eventfd_read(descriptor) for descriptor in passed.values()] == list(range(1, 21))
    assert receiver.receive() == AbortQuery(9)
    for descriptor in (*own, *passed.values()):
        os.close(descriptor)
    sender.close()
    with pytest.raises(ChannelClosedError):
        receiver.receive_passed()
    receiver.close()
