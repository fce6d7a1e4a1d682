"""Counting requests in a batch gives what counting them one by one gives."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from veltair.errors import (
    DeadlineError,
    FailureReason,
    KernelError,
    OverloadedError,
    QueryError,
    RefusalReason,
    RequestError,
)
from veltair.server.front import recent_window, request_counts
from veltair.server.front.recent_window import CAPACITY, RecentWindow
from veltair.server.front.request_counts import OUTCOMES, DurationHistogram, RequestCounts
from veltair.server.ipc.stages import ENDED_REQUEST, EXECUTE, STAGES
from veltair.types import QoSTarget

MS = 1_000_000
TARGET = QoSTarget(7 * MS, 0.9)
WALL_NS = 1_700_000_000_123_456_789  # wall clock less monotonic clock
ERRORS = {
    "invalid": RequestError("x"),
    "cancelled": asyncio.CancelledError(),
}
FAILURES = {FailureReason.INTERNAL: QueryError("x"), FailureReason.KERNEL: KernelError("x")}
LATE = (RefusalReason.LATE_ON_ARRIVAL, RefusalReason.DEADLINE)
ENDS = [  # outcomes, each with the number of its reason
    *((OUTCOMES.index(outcome), 0) for outcome in ("ok", *ERRORS)),
    *((OUTCOMES.index("failed"), failure.number) for failure in FAILURES),
    *((OUTCOMES.index("deadline" if reason in LATE else "overloaded"), reason.number) for reason in RefusalReason),
]


class Clocks:
    """In place of the module `time`."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return self.now_ns + WALL_NS


def count_one_by_one(counts: RequestCounts, records: NDArray[Any], patch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()
    patch.setattr(request_counts, "time", clocks)
    reasons = list(RefusalReason)
    for clocks.now_ns, duration_ns, stage_ns, batch, outcome, reason in records.tolist():
        if OUTCOMES[outcome] == "ok":
            counts.count_answer(stage_ns, batch)
        elif OUTCOMES[outcome] == "failed":
            counts.count_error(FAILURES[list(FailureReason)[reason - 1]], duration_ns)
        elif reason:
            kind = DeadlineError if OUTCOMES[outcome] == "deadline" else OverloadedError
            counts.count_error(kind(reasons[reason - 1]), duration_ns)
        else:
            counts.count_error(ERRORS[OUTCOMES[outcome]], duration_ns)


def state(value: object) -> object:
    """All that an object holds, to compare it."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, DurationHistogram):
        return value.buckets(), value.sum_ns
    parts = isinstance(value, RequestCounts | RecentWindow)
    return {k: state(v) for k, v in vars(value).items()} if parts else value


def split(duration_ns: int) -> tuple[int, ...]:
    """Stages that add up to it."""
    return (*(duration_ns // 9,) * (len(STAGES) - 1), duration_ns - duration_ns // 9 * (len(STAGES) - 1))


edges = st.sampled_from((0, 99_999, 100_000, 100_001, 7 * MS - 1, 7 * MS, 7 * MS + 1, 5_000 * MS, 5_000 * MS + 1))
durations = edges | st.integers(0, 10**12)
stages = st.tuples(*[st.just(0) | durations] * len(STAGES)) | durations.map(split)
ends = st.sampled_from(ENDS)
record = st.builds(
    lambda end_ns, stage_ns, batch, end: (end_ns, sum(stage_ns), stage_ns, batch, *end),
    *(st.integers(0, 10**15), stages, st.integers(1, 2**31 - 1), ends),
)
batches = st.lists(st.lists(record, max_size=20), max_size=4)


@given(batches, st.integers(0, 10**15))
def test_a_batch_counts_as_its_records_one_by_one(drawn: list[list[Any]], drained_ns: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recent_window, "CAPACITY", 8)  # so that batches overwrite it, in part and more than once
        batched, single = RequestCounts("mlp", TARGET), RequestCounts("mlp", TARGET)
        for rows in drawn:
            records = np.array(rows, ENDED_REQUEST)
            batched.count_batch(records, monotonic_ns=drained_ns, wall_ns=drained_ns + WALL_NS)
            count_one_by_one(single, records, patch)
            assert state(batched) == state(single)
        assert sum(batched.stage_ns) == batched.duration.sum_ns
        assert sum(batched.stage_ns[:EXECUTE]) == batched.queue.sum_ns
        assert batched.stage_ns[EXECUTE] == batched.execution.sum_ns


def test_a_batch_larger_than_the_window_leaves_its_last_records(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    batched, single = RequestCounts("mlp", TARGET), RequestCounts("mlp", TARGET)
    for size in (CAPACITY - 5, 100, 2 * CAPACITY + 77):
        records = np.zeros(size, ENDED_REQUEST)
        records["end_ns"] = random.integers(0, 20 * MS, size)
        records["stage_ns"] = random.integers(0, 3 * MS, (size, len(STAGES)))
        records["duration_ns"] = records["stage_ns"].sum(axis=1)
        records["batch"] = random.integers(1, 9, size)
        drawn = np.array(ENDS)[random.integers(0, len(ENDS), size)]
        records["outcome"], records["reason"] = drawn.T
        batched.count_batch(records, monotonic_ns=0, wall_ns=WALL_NS)
        count_one_by_one(single, records, monkeypatch)
        assert state(batched) == state(single)
    assert batched.window.stats(0, 20 * MS) == single.window.stats(0, 20 * MS)


def test_a_batch_counts_beside_single_requests_and_its_late_end_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = RequestCounts("mlp", TARGET)
    overloaded, slots = OUTCOMES.index("overloaded"), RefusalReason.SLOTS.number
    rows = [(500 * MS, 8 * MS, split(8 * MS), 3, 0, 0), (400 * MS, MS, split(0), 1, overloaded, slots)]
    count_one_by_one(counts, np.array([(900 * MS, 7 * MS, split(7 * MS), 1, 0, 0)], ENDED_REQUEST), monkeypatch)
    counts.count_batch(np.array(rows, ENDED_REQUEST), monotonic_ns=1_000 * MS, wall_ns=1_000 * MS + WALL_NS)
    assert counts.outcomes == Counter(ok=2, overloaded=1)
    assert counts.refusals == {RefusalReason.SLOTS: 1}
    assert (counts.qos_met, counts.inferences, counts.versions["1"].failed_ns) == (1, 4, MS)
    assert counts.versions["1"].last_ms == (900 * MS + WALL_NS) // MS
    stats = counts.window.stats(0, 1_000 * MS)
    assert (stats.qps, stats.refused_qps, stats.qos_rate) == (2.0, 1.0, 1 / 3)


def test_an_outcome_that_does_not_exist_is_refused_before_anything_is_counted() -> None:
    counts = RequestCounts("mlp", TARGET)
    for outcome, refusal in ((-1, 0), (len(OUTCOMES), 0), (2, -1), (2, 1 + len(RefusalReason))):
        with pytest.raises(ValueError, match=r"negative|longer"):
            counts.count_batch(np.array([(0, 0, split(0), 1, outcome, refusal)], ENDED_REQUEST), 0, 0)
    assert state(counts) == state(RequestCounts("mlp", TARGET))


@given(st.lists(durations, max_size=20), st.lists(st.integers(1, 10**11), min_size=1, max_size=4))
def test_another_target_leaves_what_was_counted(taken: list[int], targets: list[int]) -> None:
    counts, every = RequestCounts("mlp", TARGET), DurationHistogram()
    for duration_ns in taken:
        counts.count_answer(split(duration_ns), batch=1, version=str(duration_ns % 2))
        every.add(duration_ns)
    met = counts.qos_met
    for target in targets:
        counts.aim_at(QoSTarget(target, 0.5))
    counts.count_answer(split(targets[-1]), batch=1)
    counts.count_answer(split(targets[-1] + 1), batch=1)
    assert counts.qos_met == met + 1 and counts.outcomes["ok"] == len(taken) + 2
    assert counts.duration.sum_ns == sum(taken) + 2 * targets[-1] + 1
    after = dict(counts.duration.buckets())
    assert after["+Inf"] == len(taken) + 2 and repr(targets[-1] / 1e9) in after
    for edge, before in every.buckets()[:-1]:  # those that each target has
        assert after[edge] == before + sum(end <= float(edge) * 1e9 for end in (targets[-1], targets[-1] + 1))
    assert sum(each.answered for each in counts.versions.values()) == len(taken) + 2
