"""Queries that workers report as done: each comes out at its thread once, whoever reports, or is killed, meanwhile."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from veltair.server.ipc.done_queries import DONE, Caller, DoneQueries, create_done_queries, pack_callers
from veltair.server.ipc.lane_descriptors import LaneDescriptors

LANES, PLACES = 3, 8
MOST = 2**32 - 1


def shared(lanes: int = LANES, places: int = PLACES) -> LaneDescriptors:
    wakes = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(lanes))
    return LaneDescriptors(-1, 0, -1, wakes, create_done_queries(lanes, places), places)


def close(descriptors: LaneDescriptors) -> None:
    for fd in (*descriptors.wakes, descriptors.done):
        os.close(fd)


def report(to: DoneQueries, callers: Sequence[Caller], begin_ns: int = 1, execute_ns: int = 2, end_ns: int = 3) -> int:
    packed = ctypes.create_string_buffer(pack_callers(callers))
    return to.report(ctypes.addressof(packed), len(callers), begin_ns, execute_ns, end_ns)


def rings(wake: int) -> int:
    with suppress(BlockingIOError):
        return os.eventfd_read(wake)
    return 0


class ReportMachine(RuleBasedStateMachine):
    """Two workers and the threads of a front; a slot has one query at a time, as `free` says."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptors = shared()
        self.workers = DoneQueries(self.descriptors), DoneQueries(self.descriptors)
        self.front = DoneQueries(self.descriptors)
        self.told: list[deque[tuple[int, ...]]] = [deque() for _ in range(LANES)]
        self.free = set(range(PLACES))
        self.query = 0

    @rule(worker=st.integers(0, 1), lanes=st.lists(st.integers(0, LANES - 1), max_size=PLACES), data=st.data())
    def reports(self, worker: int, lanes: list[int], data: st.DataObject) -> None:
        places = data.draw(st.permutations(sorted(self.free)))
        callers = []
        for lane, place in zip(lanes, places, strict=False):
            self.query += 1
            callers.append(Caller(self.query, -self.query, lane, place))
        ended_ns = report(self.workers[worker], callers, 10, 20, 30)
        awake = [bool(told) for told in self.told]  # or will be, once whoever told of the first one has rung
        for query, taken_ns, lane, place in callers:
            self.told[lane].append((query, 20, taken_ns, 10, 30, ended_ns))
            self.free.remove(place)
        for lane, wake in enumerate(self.descriptors.wakes):  # once, however many
            assert rings(wake) == (lane in {caller.lane for caller in callers} and not awake[lane])

    @rule(lane=st.integers(0, LANES - 1))
    def takes(self, lane: int) -> None:
        found = self.front.take(lane)
        assert [tuple(each)[:6] for each in found.tolist()] == list(self.told[lane])
        self.told[lane].clear()
        waiting = sum(map(len, self.told))
        if not waiting:
            self.free = set(range(PLACES))

    @invariant()
    def nothing_comes_twice(self) -> None:
        assert len(self.free) + sum(map(len, self.told)) <= PLACES

    def teardown(self) -> None:
        close(self.descriptors)


TestReports = ReportMachine.TestCase


@pytest.fixture
def descriptors() -> Iterator[LaneDescriptors]:
    made = shared()
    yield made
    close(made)


@pytest.mark.parametrize(
    "caller", [Caller(1, 0, LANES, 0), Caller(1, 0, 0, PLACES), Caller(1, 0, 2**32 - 1, 2**32 - 1)]
)
def test_a_caller_that_cannot_be_is_left_out(descriptors: LaneDescriptors, caller: Caller) -> None:
    worker = DoneQueries(descriptors)
    assert report(worker, [caller, Caller(2, 0, 0, 1)]) > 0
    assert worker.take(0)["query"].tolist() == [2]
    assert all(not len(worker.take(lane)) for lane in (1, 2))


def test_a_list_that_leads_astray_ends(descriptors: LaneDescriptors) -> None:
    worker = DoneQueries(descriptors)
    for query, place in ((1, 0), (2, 1)):
        report(worker, [Caller(query, 0, 0, place)])
    records = worker.address + 128 * LANES
    first = ctypes.c_uint32.from_address(records + DONE.fields["next"][1])
    for astray in (2, PLACES + 1):  # a circle; a place that there is not
        first.value = astray
        assert len(worker.take(0)) <= PLACES
        report(worker, [Caller(2, 0, 0, 1)])


REPORTING = """
import ctypes, os, sys
from veltair.server.ipc.done_queries import Caller, DoneQueries, pack_callers
from veltair.server.ipc.lane_descriptors import LaneDescriptors
done, wake, go, first = map(int, sys.argv[1:])
worker = DoneQueries(LaneDescriptors(-1, 0, -1, (wake,), done, 8))
for turn in range(500):
    os.eventfd_read(go)
    callers = [Caller(10 * turn + place, 0, 0, place) for place in range(first, first + 4)]
    packed = ctypes.create_string_buffer(pack_callers(callers))
    worker.report(ctypes.addressof(packed), 4, 1, 2, 3)
"""


@pytest.mark.slow
def test_two_workers_report_to_one_thread_at_once() -> None:
    made = shared(lanes=1)
    front, go = DoneQueries(made), [os.eventfd(0) for _ in range(2)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", REPORTING, str(made.done), str(made.wakes[0]), str(fd), str(4 * index)],
            pass_fds=(made.done, made.wakes[0], fd),
        )
        for index, fd in enumerate(go)
    ]
    try:
        for turn in range(500):
            for fd in go:
                os.eventfd_write(fd, 1)
            found: Counter[int] = Counter()
            while found.total() < PLACES:
                found.update(front.take(0)["query"].tolist())
                assert all(worker.poll() in (None, 0) for worker in workers)
            assert found == Counter(10 * turn + place for place in range(PLACES))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for fd in go:
            os.close(fd)
        close(made)
