"""Versions of layers are counted once for each answered query, however many kinds of blocks there are."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from veltair.server.engine.in_flight_batch import InFlightBatch
from veltair.server.engine.pending_query import PendingQuery
from veltair.server.engine.tenant_counters import MOST_BLOCK_VERSIONS, TenantCounters
from veltair.server.ipc.messages import InferQuery, Outcome
from veltair.server.ipc.stages import EngineStamps
from veltair.server.ipc.status_records import BlockRecord

WORKER = cast(Any, None)


def batch_of(arrivals: list[int], blocks: list[tuple[int, ...]], *, traced: bool = False) -> InFlightBatch:
    """Queries 1, 2, … whose blocks begin at 1000, 1100, … and take 50 ns each."""
    queries = [
        PendingQuery(InferQuery(i, 0, i, 1, arrival, None, traced), "mlp", "1", 950)
        for i, arrival in enumerate(arrivals, 1)
    ]
    batch = InFlightBatch(queries, WORKER)
    start = 0
    for i, versions in enumerate(blocks):
        begin, stop = 1000 + 100 * i, start + len(versions)
        batch.blocks.append(BlockRecord(1, "mlp", start, stop, versions, (0,), begin, begin + 50, False, 1.0))
        start = stop
    return batch


def test_each_query_of_a_batch_waits_from_its_own_arrival_and_runs_in_all_its_blocks() -> None:
    batch = batch_of([700, 900], [(0, 2), (1,)], traced=True)
    ended = [query.end("done", now_ns=1300) for query in batch.queries]
    assert [(end.query, end.execute_ns) for end in ended] == [(1, 100), (2, 100)]
    assert {end.stamps for end in ended} == {EngineStamps(taken_ns=950, begin_ns=1000, end_ns=1150, ended_ns=1300)}
    assert {end.blocks for end in ended} == {tuple(batch.blocks)}
    assert batch_of([700], [(0, 2)]).queries[0].end("done", now_ns=1300).blocks == ()
    counters = TenantCounters(qos_ns=500)
    for query, end in zip(batch.queries, ended, strict=True):
        counters.count_end(query, end)
    status = counters.status(waiting=0, running=0)
    assert (status.done, status.within_qos, status.queue_ns, status.execute_ns) == (2, 1, 400, 200)
    assert status.versions == {0: 2, 1: 2, 2: 2}


blocks = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple), max_size=3)
outcomes = st.sampled_from(("done", "rejected", "cancelled", "failed", "worker_died"))


@given(st.lists(st.tuples(blocks, outcomes, st.booleans()), max_size=20))
def test_versions_are_those_of_the_done_queries(queries: list[tuple[list[tuple[int, ...]], Outcome, bool]]) -> None:
    counters, expected = TenantCounters(qos_ns=1), Counter[int]()
    for blocks, outcome, asked in queries:
        (query,) = batch_of([0], blocks).queries
        counters.count_end(query, query.end(outcome, now_ns=2000))
        if outcome == "done":
            expected.update(version for versions in blocks for version in versions)
        if asked:
            assert counters.status(0, 0).versions == expected
    assert counters.status(0, 0).versions == expected


def test_a_stream_of_new_blocks_takes_no_more_memory() -> None:
    counters = TenantCounters(qos_ns=1)
    count = 2 * MOST_BLOCK_VERSIONS + 5
    for i in range(count):
        (query,) = batch_of([0], [tuple(map(int, f"{i:012b}"))]).queries
        counters.count_end(query, query.end("done", now_ns=2000))
        assert len(counters.block_versions) <= MOST_BLOCK_VERSIONS
    ones = sum(i.bit_count() for i in range(count))
    assert counters.status(0, 0).versions == {0: 12 * count - ones, 1: ones}
