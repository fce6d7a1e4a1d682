"""The cell, the channel and the counters: what engine and workers share besides tensors."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.machine import hardware_counters
from veltair.machine.hardware_counters import CountersMissingError, L3Counters
from veltair.machine.topology import usable_machine
from veltair.server.ipc.channel import Channel, ChannelClosedError, socket_pair
from veltair.server.ipc.messages import AbortQuery, BlockDone, FromWorker, ModelsLoaded, ToEngine
from veltair.server.ipc.worker_cell import MAX_CORES, WorkerCell, create_worker_cell


def both_sides() -> tuple[WorkerCell, WorkerCell]:
    fd = create_worker_cell()
    pair = WorkerCell(fd), WorkerCell(fd)
    os.close(fd)
    return pair


@given(st.sets(st.integers(0, MAX_CORES - 1)))
def test_any_core_set_crosses_the_cell(cores: set[int]) -> None:
    engine, worker = both_sides()
    engine.set_cores((0, 5, MAX_CORES - 1))
    engine.set_cores(tuple(sorted(cores)))
    assert worker.read() == (4, tuple(sorted(cores)), 0)


def test_a_cell_tells_that_it_changed_and_what() -> None:
    engine, worker = both_sides()
    assert worker.read() == (0, (), 0)
    engine.set_cores((1, 2))
    assert worker.sequence == 2
    engine.cancel(77)
    assert worker.read() == (4, (1, 2), 77)
    worker.progress = 12
    assert engine.progress == 12
    assert worker.sequence == 4


def test_native_code_finds_the_words_of_a_cell() -> None:
    engine, worker = both_sides()
    sequence, progress = map(ctypes.c_uint64.from_address, worker.word_addresses())
    engine.cancel(77)
    assert sequence.value == 2
    progress.value = 12
    assert engine.progress == 12
    assert engine.read() == (2, (), 77)


def channels() -> tuple[Channel[FromWorker], Channel[ToEngine]]:
    ours, theirs = socket_pair()
    for end in (ours, theirs):
        end.setblocking(False)
    return Channel(ours, FromWorker), Channel(theirs, ToEngine)


def test_messages_arrive_whole_in_order_and_typed() -> None:
    engine, worker = channels()
    worker.send(ModelsLoaded())
    worker.send(BlockDone(3, 4, 5, 1 << 62))
    assert engine.receive() == ModelsLoaded()
    assert engine.receive() == BlockDone(3, 4, 5, 1 << 62)
    assert engine.receive() is None
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
        worker.send(BlockDone(query, 1, 2, 3))
    assert worker.backlog
    received = []
    while len(received) < 2000:
        while (message := engine.receive()) is not None:
            assert isinstance(message, BlockDone)
            received.append(message.query)
        worker.flush()
    assert received == list(range(1, 2001))
    assert not worker.backlog
    engine.close()
    worker.close()


def test_the_last_words_are_read_before_the_end_is_seen() -> None:
    engine, worker = channels()
    worker.send(ModelsLoaded())
    worker.close()
    assert engine.receive() == ModelsLoaded()
    with pytest.raises(ChannelClosedError):
        engine.receive()
    with pytest.raises(ChannelClosedError):
        engine.send(AbortQuery(1))
    engine.close()


def test_counters_count_or_say_why_there_are_none(caplog: pytest.LogCaptureFixture) -> None:
    cores = usable_machine().cores
    with caplog.at_level("INFO"):
        opened = hardware_counters.open_counters(cores)
    if opened is None:  # a virtual machine, or a kernel that keeps them to itself
        with pytest.raises(CountersMissingError, match="perf_event_open on core"):
            L3Counters(cores)
        assert "no L3 counters: perf_event_open on core" in caplog.text
        return
    first = opened.sample(1000)
    assert (first.time_ns, first.window_ns) == (1000, 0)
    touched = sum(bytearray(64 << 20)[::64])
    second = opened.sample(2000)
    assert (second.window_ns, touched) == (1000, 0)
    assert second.l3_accesses > 0
    opened.close()


def test_failed_counters_leave_no_descriptor_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CountersMissingError):
        L3Counters((MAX_CORES * 64,))  # no such core anywhere
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_samples_are_differences_scaled_for_shared_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading side on files that hold what the kernel's would: value, time enabled, time running."""
    files: list[int] = []

    def open_file(config: int, core: int) -> int:
        fd = os.memfd_create(f"{config}-{core}")
        files.append(fd)
        return fd

    def fill(*values: tuple[int, int, int]) -> None:
        for fd, value in zip(files, values, strict=True):
            os.pwrite(fd, struct.pack("=QQQ", *value), 0)
            os.lseek(fd, 0, os.SEEK_SET)

    monkeypatch.setattr(hardware_counters, "_open", open_file)
    opened = L3Counters((0, 1))  # accesses of both cores, then misses of both
    fill((100, 10, 10), (50, 10, 5), (7, 10, 10), (1, 0, 0))
    sample = opened.sample(1_000)
    assert (sample.l3_accesses, sample.l3_misses, sample.window_ns) == (200, 8, 0)
    fill((150, 20, 20), (100, 20, 10), (17, 20, 20), (1, 0, 0))
    sample = opened.sample(6_000)
    assert (sample.l3_accesses, sample.l3_misses, sample.window_ns) == (150, 10, 5_000)
    assert sample.source == hardware_counters.SOURCE
    opened.close()


def test_the_attribute_is_laid_out_as_the_kernel_wants_it() -> None:
    raw = hardware_counters.encode_event_attribute(0x10002)  # last-level cache, read, miss
    assert len(raw) == 128
    assert struct.unpack_from("=IIQQQQQ", raw) == (3, 128, 0x10002, 0, 0, 3, 0)
