"""How long a load pauses: from what the clock, its own thread and the workers say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from veltair.machine.load_pace import (
    AT_WORK_NS,
    LINGER_NS,
    LIST_NS,
    LONGEST_PAUSE_NS,
    WINDOW_NS,
    LoadPace,
    PacedLoad,
    WorkerTimes,
)

MS = 1_000_000


def begun(share: float = 0.1) -> LoadPace:
    """At time 0, beside workers that have run just now."""
    pace = LoadPace(share)
    assert pace.pause_ns(0, 0, others_ns=0) == 0
    assert pace.pause_ns(0, 0, others_ns=AT_WORK_NS) == 0  # it has done nothing yet
    return pace


def test_where_no_worker_computes_there_is_no_pause() -> None:
    pace = LoadPace(0.1)
    assert [pace.pause_ns(t * MS, t * MS, others_ns=t * 1000) for t in range(500)] == [
        0
    ] * 500  # a thousandth of a core


def test_beside_others_a_piece_has_its_share_of_the_time_until_the_next() -> None:
    pace = begun(share=0.1)
    assert pace.pause_ns(2 * MS, 2 * MS, AT_WORK_NS) == 18 * MS
    assert pace.pause_ns(21 * MS, 3 * MS, AT_WORK_NS) == 9 * MS  # from 20 ms on, when the pause was over


def test_time_in_which_it_waited_for_a_core_counts_as_a_pause() -> None:
    pace = begun(share=0.1)
    assert pace.pause_ns(7 * MS, 1 * MS, AT_WORK_NS) == 3 * MS
    assert pace.pause_ns(40 * MS, 2 * MS, AT_WORK_NS) == 0  # it has waited for longer than it owes


def test_a_pause_that_lasted_longer_is_made_good_by_the_next() -> None:
    pace = begun(share=0.1)
    assert pace.pause_ns(1 * MS, 1 * MS, AT_WORK_NS) == 9 * MS
    assert pace.pause_ns(16 * MS, 2 * MS, AT_WORK_NS) == 4 * MS  # it slept until 15 ms


def test_queries_that_come_one_after_the_other_count_as_one_time_of_work() -> None:
    pace = begun()
    assert pace.pause_ns(LINGER_NS - 1, MS, AT_WORK_NS) == 0  # alone for long, and within its share
    pace = begun(0.5)
    assert pace.pause_ns(LINGER_NS - 1, LINGER_NS, AT_WORK_NS) > 0
    pace = begun(0.5)
    assert pace.pause_ns(LINGER_NS, LINGER_NS, AT_WORK_NS) == 0


def test_a_little_work_adds_up_within_a_window_alone() -> None:
    little = AT_WORK_NS // 2 + 1
    pace = LoadPace(0.1)
    pace.pause_ns(0, 0, 0)
    assert pace.pause_ns(MS, MS, little) == 0
    assert pace.pause_ns(2 * MS, 2 * MS, 2 * little) == 9 * MS
    pace = LoadPace(0.1)
    pace.pause_ns(0, 0, 0)
    assert pace.pause_ns(WINDOW_NS, MS, little) == 0  # the next window begins
    assert pace.pause_ns(WINDOW_NS + MS, 2 * MS, 2 * little) == 0


@pytest.mark.parametrize(
    ("share", "own", "pause"), [(1.0, None, 0), (0.1, 0.5, 10 * MS), (0.01, None, LONGEST_PAUSE_NS)]
)
def test_shares(share: float, own: float | None, pause: int) -> None:
    assert begun(share).pause_ns(10 * MS, 10 * MS, AT_WORK_NS, own) == pause


def test_kernels_have_half_a_core_at_least() -> None:
    """The times are of looks: at the start, then after each piece, which takes 1 ms of this thread's core."""
    clock_ms, used_ms, others_ms = iter([0, 1, 11, 13]), iter([0, 1, 2, 3]), iter([0, 5, 9, 9])
    slept: list[float] = []

    def ms(values: Iterator[int]) -> Callable[[], int]:
        return lambda: next(values) * MS

    paced = PacedLoad(LoadPace(0.1), ms(others_ms), clock_ns=ms(clock_ms), used_ns=ms(used_ms), sleep=slept.append)
    paced.pause()
    paced.pause_running()
    paced.pause()
    assert slept == pytest.approx([0.009, 0.001, 0.009])


class Machine:
    """Processes by parent, and the core time of each that lives."""

    def __init__(self) -> None:
        self.children = {1: [2, 9], 2: [3, 4, os.getpid()]}
        self.core_ns = {3: 100, 4: 1000}
        self.now_ns = 0
        self.workers = WorkerTimes(
            lambda: self.children[1],
            children=lambda process: self.children.get(process, []),
            core_ns=self._core_ns,
            clock_ns=lambda: self.now_ns,
        )

    def _core_ns(self, process: int) -> int:
        if process not in self.core_ns:
            raise OSError
        return self.core_ns[process]


def test_core_time_is_that_since_a_worker_was_first_seen() -> None:
    machine = Machine()
    assert machine.workers() == 0
    machine.core_ns = {3: 150, 4: 1000}
    assert machine.workers() == 50
    machine.core_ns = {3: 150, 4: 1007}
    assert machine.workers() == 57


def test_workers_come_and_go() -> None:
    machine = Machine()
    machine.workers()
    machine.children[2] = [4, 5]
    machine.core_ns = {4: 1010, 5: 70_000}
    assert machine.workers() == 10  # 3 has ended; nobody knows of 5
    machine.now_ns = LIST_NS
    assert machine.workers() == 10
    machine.core_ns = {4: 1010, 5: 70_005}
    assert machine.workers() == 15


def test_a_real_process_and_its_children() -> None:
    workers = WorkerTimes(lambda: [os.getpid()])
    assert workers() == 0
