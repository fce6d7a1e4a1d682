"""How long a process has done nothing: one that sleeps or is stopped, one that works, one that has ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from veltair.machine.standstill import Standstill

SECOND_NS = 1_000_000_000


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has said one line."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield process
        finally:
            process.kill()


def lasts(watch: Standstill) -> bool:
    """Whether it comes to a standstill, and stays in it."""
    give_up, now_ns = time.monotonic() + 60, 0
    while time.monotonic() < give_up:
        if watch.lasted_ns(now_ns := now_ns + SECOND_NS) == 3 * SECOND_NS:
            return True
        time.sleep(0.01)
    return False


def test_a_process_that_waits_stands_still() -> None:
    with running("print(flush=True); input()") as process:
        watch = Standstill(process.pid)
        assert watch.lasted_ns(5 * SECOND_NS) == 0  # the first look
        assert lasts(Standstill(process.pid))


def test_a_process_that_works_does_not_until_it_is_stopped() -> None:
    with running("print(flush=True)\nwhile True: pass") as process:
        watch = Standstill(process.pid)
        assert [watch.lasted_ns(n * SECOND_NS) for n in range(1, 20)] == [0] * 19
        process.send_signal(signal.SIGSTOP)
        assert lasts(watch)


def test_a_process_that_has_ended_is_no_standstill() -> None:
    with running("print(flush=True); input()") as process:
        watch = Standstill(process.pid)
    assert [watch.lasted_ns(n * SECOND_NS) for n in range(1, 4)] == [0] * 3
