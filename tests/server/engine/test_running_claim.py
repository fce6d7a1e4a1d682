"""`RunningClaim`: a query is slow by what its worker has worked, not by how long the worker waited for a core."""

from __future__ import annotations

import subprocess
import sys

import pytest

from veltair.server.engine.lending import running_claim
from veltair.server.engine.lending.running_claim import LONG_NS, LONG_WORK_NS, RunningClaim, cpu_time_ns
from veltair.server.ipc.done_queries import Caller
from veltair.server.ipc.standing_orders import Claim


def claim(query: int, taken_ns: int = 0) -> Claim:
    return Claim(Caller(query, taken_ns, lane=0, place=0), order=0, slot=0)


class Clocks:
    now_ns = worked_ns = 10**12


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(running_claim.time, "monotonic_ns", lambda: clocks.now_ns)
    monkeypatch.setattr(running_claim, "cpu_time_ns", lambda pid: clocks.worked_ns)
    return clocks


def test_a_worker_that_waits_for_a_core_is_not_slow_for_a_while(clocks: Clocks) -> None:
    running = RunningClaim()
    assert not running.takes_long(claim(1), 7, waited_for=True)  # however long it has waited in the line
    clocks.now_ns += LONG_NS
    assert not running.takes_long(claim(1), 7, waited_for=True)
    clocks.now_ns += 1
    assert running.takes_long(claim(1), 7, waited_for=True)
    assert not running.takes_long(claim(2), 7, waited_for=True)


def test_a_query_for_which_its_worker_works_long_is(clocks: Clocks) -> None:
    running = RunningClaim()
    assert not running.takes_long(claim(1), 7, waited_for=True)
    clocks.worked_ns += LONG_WORK_NS
    assert not running.takes_long(claim(1), 7, waited_for=True)
    clocks.worked_ns += 1
    assert running.takes_long(claim(1), 7, waited_for=True)


@pytest.mark.parametrize(("age_ns", "long"), [(0, False), (LONG_NS, False), (LONG_NS + 1, True), (-1, True)])
def test_one_that_nobody_waits_for_has_run_since_it_was_taken(clocks: Clocks, age_ns: int, long: bool) -> None:
    assert RunningClaim().takes_long(claim(1, clocks.now_ns - age_ns), 7, waited_for=False) == long


def test_the_time_of_another_process_is_read_until_it_is_gone() -> None:
    work = "while True:\n    pass"
    with subprocess.Popen([sys.executable, "-c", work]) as process:
        while cpu_time_ns(process.pid) < 10_000_000:
            assert process.poll() is None
        process.kill()
    assert cpu_time_ns(process.pid) == 0
