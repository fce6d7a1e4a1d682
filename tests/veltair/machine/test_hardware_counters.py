"""L3 counters: real ones where the machine has them, and what is read from them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from veltair.machine import hardware_counters
from veltair.machine.hardware_counters import CountersMissingError, L3Counters
from veltair.machine.topology import usable_machine
from veltair.server.ipc.worker_cell import MAX_CORES


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
