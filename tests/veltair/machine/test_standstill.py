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


def until_it_hangs(watch: Standstill, step_ns: int, most_ns: int) -> bool:
    give_up, now_ns = time.monotonic() + 60, 0
    while time.monotonic() < give_up:
        if watch.hangs(now_ns := now_ns + step_ns, most_ns):
            return True
        time.sleep(0.01)
    return False


def test_a_process_that_uses_a_core_for_too_long_hangs() -> None:
    with running("print(flush=True)\nwhile True: pass") as process:
        watch = Standstill(process.pid)
        # What it used before the first look does not count, nor does time that passes while it waits for a core.
        assert not any(watch.hangs(n * 3600 * SECOND_NS, 3600 * SECOND_NS) for n in range(20))
        assert until_it_hangs(watch, step_ns=0, most_ns=SECOND_NS // 20)


def test_a_process_that_is_stopped_hangs() -> None:
    with running("print(flush=True)\nwhile True: pass") as process:
        process.send_signal(signal.SIGSTOP)
        assert until_it_hangs(Standstill(process.pid), step_ns=1000 * SECOND_NS, most_ns=3600 * SECOND_NS)
