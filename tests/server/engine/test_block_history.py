"""Blocks are handed out in pages that fit a message: each kept block once, in order."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.server.engine import block_history
from veltair.server.engine.block_history import BlockHistory, encoded_bytes
from veltair.server.ipc.status_records import BlockRecord, CoreChange

times = st.integers(0, 2**63 - 1)
small = st.integers(0, 2**16 - 1)
tuples = st.lists(small, max_size=300).map(tuple)
changes = st.lists(st.builds(CoreChange, small, tuples, times), max_size=5).map(tuple)
records = st.builds(
    BlockRecord,
    query=times,
    tenant=st.text(st.characters(codec="utf-8"), max_size=300),
    start=small,
    stop=small,
    versions=tuples,
    cores=tuples,
    begin_ns=times,
    end_ns=times,
    conflict=st.booleans(),
    level=st.floats(allow_nan=False),
    core_changes=changes,
    queries=small,
)


@given(records)
def test_no_record_takes_more_than_is_reckoned(record: BlockRecord) -> None:
    assert len(msgspec.msgpack.encode(record)) <= encoded_bytes(record)


def block(query: int, layers: int = 3) -> BlockRecord:
    return BlockRecord(query, "mlp", 0, layers, (0,) * layers, (0, 1), 100, 350, conflict=False, level=1.0)


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(0, 60), st.integers(1, 5))
def test_pages_hold_each_kept_block_once_in_order(added: list[int], since: int, page: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_history, "KEPT_BLOCKS", 20)
        patch.setattr(block_history, "PAGE_BYTES", page * encoded_bytes(block(0)))
        history = BlockHistory()
        expected: deque[int] = deque(maxlen=20)
        for blocks in added:
            queries = range(history.count, history.count + blocks)
            history.add([block(query) for query in queries])
            expected.extend(queries)
        assert history.count == sum(added)
        found: list[int] = []
        cursor = since
        while (last := cursor) < history.count:
            blocks_now, cursor = history.page(cursor)
            assert 0 < len(blocks_now) <= page
            assert cursor > last
            found += [record.query for record in blocks_now]
        assert found == [query for query in expected if query >= since]
        assert history.page(history.count) == ((), history.count)


def test_a_page_of_the_largest_history_fits_a_message_and_a_huge_block_is_a_page_of_its_own() -> None:
    history = BlockHistory()
    history.add([block(query, layers=54) for query in range(10_000)])
    page, cursor = history.page(0)
    assert page[0].query == 10_000 - block_history.KEPT_BLOCKS
    assert len(msgspec.msgpack.encode(page)) <= block_history.PAGE_BYTES
    assert len(page) > 500 and cursor == page[-1].query + 1
    history.add([block(10_000, layers=100_000), block(10_001)])
    assert [[record.query for record in history.page(since)[0]] for since in (10_000, 10_001)] == [[10_000], [10_001]]
