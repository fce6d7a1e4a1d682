"""A timer for an event loop with microseconds of precision: loops round their own to whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from types import TracebackType

_CLOCK_MONOTONIC = 1  # the clock of time.monotonic_ns
_TFD_NONBLOCK, _TFD_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Itimerspec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


_libc = ctypes.CDLL(None, use_errno=True)


class PreciseTimer:
    """A Linux timerfd, used as a context manager inside a running loop.

    ::

        with PreciseTimer() as timer:
            await timer.wait_until(time.monotonic_ns() + 250_000)
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._expired: asyncio.Future[None] | None = None
        self._fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop.add_reader(self._fd, self._expire)

    async def wait_until(self, time_ns: int) -> None:
        """Wait until `time.monotonic_ns()` reaches the given time; when it has already, let the loop run once."""
        if time_ns <= time.monotonic_ns():
            await asyncio.sleep(0)  # a late sender must still send, read responses and notice a stop
            return
        spec = _Itimerspec(0, 0, *divmod(time_ns, 1_000_000_000))
        self._expired = self._loop.create_future()
        if _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await self._expired

    def _expire(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        if self._expired is not None and not self._expired.done():
            self._expired.set_result(None)

    def __enter__(self) -> PreciseTimer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
