"""The cell that engine and worker share: its layout, and the wake-ups across two processes."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running_engine import living, process_state, readable

from veltair.server.ipc.block_orders import BATCH, BlockEnd, BlockKey, Members, Order, unpack_key, unpack_members
from veltair.server.ipc.done_queries import CALLER_BYTES, Caller, pack_callers
from veltair.server.ipc.worker_cell import MAX_CORES, WorkerCell, cell_bytes, create_worker_cell

LAYERS, QUERIES = 40, 16
U32, U64, I64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1)
CORE_SETS = st.sets(st.integers(0, MAX_CORES - 1)).map(lambda cores: tuple(sorted(cores)))
QUERY_LISTS = st.lists(st.tuples(U32, st.integers(1, 1 << 20)), min_size=1, max_size=QUERIES)
ORDERS = st.builds(
    Order,
    query=st.integers(1, 2**64 - 1),
    tenant=U32,
    members=QUERY_LISTS.map(Members.of),
    start=U32,
    versions=st.lists(U32, min_size=1, max_size=LAYERS).map(tuple),
    cores=CORE_SETS,
    callers=st.lists(st.builds(Caller, U64, I64, U32, U32), max_size=QUERIES).map(pack_callers),
    begin_ns=I64,
    execute_ns=I64,
)
ONE = Order(7, 2, Members.of([(3, 1)]), start=4, versions=(0, 1), cores=(0, 9))


def both_sides() -> tuple[WorkerCell, WorkerCell]:
    fd = create_worker_cell(cell_bytes(LAYERS, QUERIES))
    pair = WorkerCell(fd), WorkerCell(fd)
    os.close(fd)
    return pair


@pytest.fixture
def bell() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


@given(CORE_SETS)
def test_any_core_set_crosses_the_cell(cores: tuple[int, ...]) -> None:
    engine, worker = both_sides()
    engine.set_cores((0, 5, MAX_CORES - 1))
    engine.set_cores(cores)
    assert worker.read() == (4, cores, 0)


@given(st.lists(ORDERS, min_size=1, max_size=4))
def test_any_orders_cross_the_cell_one_after_the_other(orders: list[Order]) -> None:
    engine, worker = both_sides()
    for order in orders:
        assert not worker.wait_for_order(0)
        engine.publish_order(order)
        assert worker.wait_for_order(0)
        query, key = worker.read_order()
        members = order.members
        assert query == order.query
        assert unpack_key(key) == BlockKey(order.tenant, order.start, members.slot, members.samples, order.versions)
        assert worker.read_members() == members.packed
        callers = worker.callers()
        assert (callers.begin_ns, callers.execute_ns) == (order.begin_ns, order.execute_ns)
        assert ctypes.string_at(callers.address, CALLER_BYTES * callers.queries) == order.callers
        assert worker.read_ordered_cores() == order.cores
        assert worker.read()[1:] == (order.cores, 0)


@given(QUERY_LISTS)
def test_members_say_what_a_batch_is(queries: list[tuple[int, int]]) -> None:
    members = Members.of(queries)
    assert unpack_members(members.packed) == queries
    assert members.samples == sum(samples for _, samples in queries)
    assert members.slot == (queries[0][0] if len(queries) == 1 else BATCH)


def test_the_bytes_of_an_order_and_its_end_lie_where_the_layout_says(bell: int) -> None:
    fd = create_worker_cell(cell_bytes(LAYERS, QUERIES))
    cell, raw = WorkerCell(fd), mmap.mmap(fd, 0)
    os.close(fd)
    callers = pack_callers([Caller(7, 40, 2, 11), Caller(9, 41, 0, 12)])
    members = Members.of([(3, 1), (5, 4)])
    cell.publish_order(Order(7, 2, members, 6, (8, 9, 10), (0, 9), callers, begin_ns=-1, execute_ns=2**62))
    cell.set_cores((1,))
    assert cell.wait_for_order(0)
    cell.publish_end(BlockEnd(7, 8, True, 2**63, 2**63 + 5, 2**63 + 6), bell)
    expected = bytearray(len(raw))
    struct.pack_into("<QQ", expected, 0, 4, 0)
    struct.pack_into("<IIQIIQQQ", expected, 128, 1, 0, 7, 8, 1, 2**63, 2**63 + 5, 2**63 + 6)
    expected[192] = 0b10
    expected[320:322] = bytes((1, 0b10))
    struct.pack_into("<IIQIII4xqq", expected, 448, 1, 0, 7, 2, 3, 2, -1, 2**62)
    struct.pack_into("<11I", expected, 496, 2, 6, BATCH, 5, 8, 9, 10, 3, 1, 5, 4)
    struct.pack_into("<QqIIQqII", expected, 540, 7, 40, 2, 11, 9, 41, 0, 12)
    assert raw[:] == bytes(expected)


def test_the_largest_order_fills_the_cell_and_no_more() -> None:
    engine, worker = both_sides()
    queries = [(slot, 1) for slot in range(QUERIES)]
    callers = pack_callers([Caller(1, 2, 3, 4)] * QUERIES)
    engine.publish_order(Order(1, 0, Members.of(queries), 0, tuple(range(LAYERS)), (0,), callers))
    assert unpack_members(worker.read_members()) == queries
    assert worker.callers().queries == QUERIES
    with pytest.raises(IndexError):
        engine.publish_order(Order(2, 0, Members.of(queries), 0, (0,) * (LAYERS + 2), (0,), callers))


@given(st.builds(BlockEnd, query=U64, stop=U32, reported=st.booleans(), begin_ns=U64, end_ns=U64, told_ns=U64))
def test_any_end_crosses_the_cell_once(end: BlockEnd) -> None:
    engine, worker = both_sides()
    bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        assert engine.take_end() is None
        engine.publish_order(ONE)
        assert engine.take_end() is None
        assert worker.wait_for_order(0)
        worker.publish_end(end, bell)
        assert os.eventfd_read(bell) == 1
        assert engine.take_end() == end
        assert engine.take_end() is None
    finally:
        os.close(bell)


def test_a_block_that_failed_has_no_end_and_the_next_one_has(bell: int) -> None:
    engine, worker = both_sides()
    engine.publish_order(ONE)
    assert worker.wait_for_order(0)
    assert engine.take_end() is None  # it failed, and said so by a message
    engine.publish_order(ONE)
    assert worker.wait_for_order(0)
    worker.publish_end(BlockEnd(7, 6, False, 1, 2), bell)
    assert engine.take_end() == BlockEnd(7, 6, False, 1, 2)


def test_a_cell_shows_that_it_changed_and_what() -> None:
    engine, worker = both_sides()
    assert worker.read() == (0, (), 0)
    engine.set_cores((1, 2))
    assert worker.sequence == 2
    engine.cancel(77)
    assert worker.read() == (4, (1, 2), 77)


def test_an_order_takes_a_cancellation_back_and_changes_nothing_else_than_it_must() -> None:
    engine, worker = both_sides()
    engine.publish_order(ONE)
    assert worker.read() == (2, ONE.cores, 0)
    engine.publish_order(ONE)
    assert worker.sequence == 2
    engine.cancel(7)
    engine.publish_order(ONE)
    assert worker.read() == (6, ONE.cores, 0)
    engine.set_cores((1,))
    engine.publish_order(ONE)
    assert worker.read() == (10, ONE.cores, 0)


def test_native_code_finds_the_words_of_a_cell() -> None:
    engine, worker = both_sides()
    sequence, progress = map(ctypes.c_uint64.from_address, worker.word_addresses())
    engine.cancel(77)
    assert sequence.value == 2
    progress.value = 12
    assert engine.progress == 12
    assert engine.read() == (2, (), 77)


ANSWERING = """
import os, sys
from veltair.server.ipc.block_orders import BlockEnd, unpack_key
from veltair.server.ipc.worker_cell import WorkerCell
cell, bell = WorkerCell(int(sys.argv[1])), int(sys.argv[2])
os.eventfd_write(bell, 1)
while True:
    assert cell.wait_for_order(600_000_000_000), "an order did not wake it"
    query, key = cell.read_order()
    cell.publish_end(BlockEnd(query, sum(unpack_key(key).versions), False, 1, 2), bell)
"""


def ring(bell: int) -> None:
    assert readable(bell), "the bell does not ring"
    assert os.eventfd_read(bell) == 1


@pytest.mark.slow
@pytest.mark.parametrize("asleep", [False, True])
def test_orders_wake_another_process_and_ends_ring_the_bell(bell: int, asleep: bool) -> None:
    fd = create_worker_cell(cell_bytes(LAYERS, QUERIES))
    engine = WorkerCell(fd)
    command = [sys.executable, "-c", ANSWERING, str(fd), str(bell)]
    with subprocess.Popen(command, pass_fds=(fd, bell)) as process:
        os.close(fd)
        try:
            ring(bell)
            for number in range(1, 201):
                while asleep and process_state(process.pid) != "S":
                    assert living(process.pid)
                versions = tuple(range(number % LAYERS + 1))
                engine.publish_order(Order(number, 0, Members.of([(3, 1)]), 0, versions, (0,)))
                ring(bell)
                assert engine.take_end() == BlockEnd(number, sum(versions), False, 1, 2)
        finally:
            process.kill()


def test_waiting_for_an_order_ends_when_its_patience_does() -> None:
    _, worker = both_sides()
    assert not worker.wait_for_order(1_000_000)
