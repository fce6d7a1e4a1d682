"""L3 accesses and misses of whole cores, by `perf_event_open`, where hardware and kernel offer them."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct

from veltair.types import CoreSet, CounterSample

logger = logging.getLogger("veltair.engine")

_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_PERF_TYPE_HW_CACHE = 3
_LL, _READ = 2, 0  # PERF_COUNT_HW_CACHE_LL, PERF_COUNT_HW_CACHE_OP_READ
_ACCESS, _MISS = 0, 1  # PERF_COUNT_HW_CACHE_RESULT_*
_ATTRIBUTE_BYTES = 128
_READ_FORMAT = 1 | 2  # PERF_FORMAT_TOTAL_TIME_ENABLED | …_RUNNING: scales counts when events share a counter

SOURCE = "perf:LL-cache"


class CountersMissingError(OSError):
    """There are no usable counters; the text says why."""


class L3Counters:
    """Counters of every core of a set, whichever process runs there.

    ::

        counters = L3Counters((0, 1))
        counters.sample(time.monotonic_ns())
        sample = counters.sample(time.monotonic_ns())  # of the time between the two calls

    Raises CountersMissingError: ENOENT on a machine without such counters (most virtual machines), EACCES where the
    kernel denies them (perf_event_paranoid above 0, no CAP_PERFMON).
    """

    def __init__(self, cores: CoreSet) -> None:
        self._fds: dict[int, list[int]] = {_ACCESS: [], _MISS: []}
        try:
            for result, fds in self._fds.items():
                for core in cores:
                    fds.append(_open(_LL | _READ << 8 | result << 16, core))
        except CountersMissingError:
            self.close()
            raise
        self._before_ns: int | None = None
        self._before = {_ACCESS: 0, _MISS: 0}

    def sample(self, now_ns: int) -> CounterSample:
        """Counts since the last call; those of the first call cover a window of 0 ns."""
        total = {result: sum(map(_read, fds)) for result, fds in self._fds.items()}
        begin_ns = now_ns if self._before_ns is None else self._before_ns
        counts = {result: max(0, total[result] - self._before[result]) for result in total}
        self._before, self._before_ns = total, now_ns
        return CounterSample(now_ns, now_ns - begin_ns, counts[_ACCESS], counts[_MISS], SOURCE)

    def close(self) -> None:
        for fds in self._fds.values():
            while fds:
                os.close(fds.pop())


def open_counters(cores: CoreSet) -> L3Counters | None:
    """The counters; None, and the reason in the log, where there are none."""
    try:
        return L3Counters(cores)
    except CountersMissingError as error:
        logger.info("no L3 counters: %s; the interference level comes from observed slowdown", error.strerror)
        return None


def encode_event_attribute(config: int) -> bytes:
    """`struct perf_event_attr` of one last-level cache event that counts at once."""
    head = struct.pack("=IIQQQQQ", _PERF_TYPE_HW_CACHE, _ATTRIBUTE_BYTES, config, 0, 0, _READ_FORMAT, 0)
    return head.ljust(_ATTRIBUTE_BYTES, b"\0")


def _open(config: int, core: int) -> int:
    number = _SYS_PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        raise CountersMissingError(errno.ENOSYS, f"perf_event_open on {os.uname().machine} is not known here")
    raw = ctypes.create_string_buffer(encode_event_attribute(config), _ATTRIBUTE_BYTES)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    every_process, no_group, close_on_exec = ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_ulong(8)
    fd: int = syscall(ctypes.c_long(number), raw, every_process, ctypes.c_int(core), no_group, close_on_exec)
    if fd < 0:
        code = ctypes.get_errno()
        raise CountersMissingError(
            code, f"perf_event_open on core {core}: {os.strerror(code)} ({errno.errorcode[code]})"
        )
    return fd


def _read(fd: int) -> int:
    value: int
    value, enabled_ns, running_ns = struct.unpack("=QQQ", os.read(fd, 24))
    return value if running_ns in (0, enabled_ns) else round(value * enabled_ns / running_ns)
