"""The cell that engine and worker share."""

from __future__ import annotations

import ctypes
import os

from hypothesis import given
from hypothesis import strategies as st

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


def test_a_cell_shows_that_it_changed_and_what() -> None:
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
