"""Whose queries the CPU time of front and engine is counted for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from veltair.scheduler.events import EdgeTimed
from veltair.server.engine.lending.lent_work import LentWork
from veltair.server.engine.sampling.edge_timing import FEW, FEW_NS, SAMPLE_NS, EdgeTiming
from veltair.server.ipc.messages import TenantSpec

NAMES = "aab"  # two versions of one tenant, and another
TENANTS = {
    number: TenantSpec(name, "/", "ab12", 10**7, 0.95, 1, True, number=number) for number, name in enumerate(NAMES)
}
BUSY_NS = 20_000_000
BUSY = f"""
import time
input()
end = time.process_time_ns() + {BUSY_NS}
while time.process_time_ns() < end: pass
print(flush=True)
input()
"""


def spend(ns: int) -> None:
    end_ns = time.thread_time_ns() + ns
    while time.thread_time_ns() < end_ns:
        pass


@contextmanager
def busy_front() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    with subprocess.Popen([sys.executable, "-S", "-c", BUSY], stdin=-1, stdout=-1, text=True) as process:
        yield process.pid, process
        process.communicate("\n")


def sample(timing: EdgeTiming, now_ns: int) -> EdgeTimed:
    event = timing.sample_if_due(now_ns)
    assert event is not None and event.time_ns == now_ns
    return event


def test_the_front_by_what_its_threads_did_and_the_engine_by_what_it_was_told_of() -> None:
    work, taken = {0: 7, 1: 0, 2: 0}, {0: 5}
    with busy_front() as (pid, process):
        timing = EdgeTiming(pid, TENANTS, work.__getitem__, taken, LentWork())
        sample(timing, 1)
        assert process.stdin is not None and process.stdout is not None
        print(file=process.stdin, flush=True)
        process.stdout.readline()
        work.update({1: 3, 2: 9})
        taken.update({1: 4})
        spend(8_000_000)
        spent = sample(timing, 1 + FEW_NS).spent_ns
    assert spent["b"] >= BUSY_NS * 9 // 12
    assert spent["a"] >= 8_000_000 + spent["b"] // 3


def test_without_threads_the_front_is_divided_as_the_engine_is() -> None:
    taken = {0: 1, 2: 3}
    timing = EdgeTiming(os.getpid(), TENANTS, lambda number: 0, taken, LentWork())
    spend(4_000_000)
    spent = sample(timing, 1).spent_ns
    assert spent["b"] >= 2 * 3_000_000 and spent["b"] == pytest.approx(3 * spent["a"], rel=0.01)


def test_what_a_lent_worker_has_run_is_its_tenants() -> None:
    taken, lent = {0: 1}, LentWork()
    timing = EdgeTiming(os.getpid(), TENANTS, lambda number: 0, taken, lent)
    for tenant, core_ns in ((0, 3 * 10**9), (0, 2 * 10**9), (1, 10**9)):
        lent.add(tenant, core_ns)
    first = sample(timing, 1)
    assert 6 * 10**9 <= first.spent_ns["a"] < 7 * 10**9 and first.unasked == 3
    taken[2] = 1
    lent.add(2, 10**9)
    second = sample(timing, 1 + FEW_NS)
    assert second.spent_ns["b"] >= 10**9 and "a" not in second.spent_ns and second.unasked == 1


def test_it_is_not_due_before_its_time_nor_where_nothing_came() -> None:
    taken = {0: 1}
    timing = EdgeTiming(os.getpid(), TENANTS, lambda number: 0, taken, LentWork())
    sample(timing, 1)
    taken[0] += FEW
    assert timing.sample_if_due(SAMPLE_NS) is None
    sample(timing, 1 + SAMPLE_NS)
    assert timing.sample_if_due(1 + SAMPLE_NS + FEW_NS) is None


def test_few_queries_wait_for_others() -> None:
    taken = {0: 1, 2: 1}
    timing = EdgeTiming(os.getpid(), TENANTS, lambda number: 0, taken, LentWork())
    sample(timing, 1)
    taken.update({0: 3, 2: FEW - 2})
    assert timing.sample_if_due(FEW_NS) is None
    assert set(sample(timing, 1 + FEW_NS).spent_ns) == {"a", "b"}


def test_who_is_gone_is_counted_no_more() -> None:
    tenants, taken = dict(TENANTS), {0: 1, 2: 1}
    timing = EdgeTiming(os.getpid(), tenants, lambda number: 0, taken, LentWork())
    del tenants[2]
    assert set(sample(timing, 1).spent_ns) == {"a"}
