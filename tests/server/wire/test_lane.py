"""A lane's two ends in one process: what goes in at one comes out at the other, unchanged and in order."""

from __future__ import annotations

import mmap
import os
from collections import deque
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from veltair.errors import RefusalReason
from veltair.server.ipc.lane import OUTCOMES, Lane, QueryRan, create_lanes, lane_bytes, ring_records
from veltair.server.ipc.messages import AbortQuery, InferQuery, QueryEnded
from veltair.server.ipc.stages import EngineStamps
from veltair.server.wire import native

RECORDS = ring_records(2)
REASON_BYTES = 192
IDS = st.integers(0, 2**64 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(-(2**31), 2**31 - 1)
DEADLINES = st.none() | TIMES.filter(bool)
INFERS = st.builds(InferQuery, IDS, NUMBERS, NUMBERS, NUMBERS, TIMES, DEADLINES, st.booleans(), NUMBERS)
RANS = st.builds(QueryRan, IDS, NUMBERS, NUMBERS, NUMBERS, TIMES, st.booleans(), st.booleans(), TIMES, TIMES, TIMES)
SHORT = st.text(st.characters(codec="utf-8"), max_size=REASON_BYTES // 4)
STAMPS = st.builds(EngineStamps, TIMES, TIMES, TIMES, TIMES)
REJECTED = st.builds(QueryEnded, IDS, st.just("rejected"), st.sampled_from(RefusalReason), TIMES, STAMPS)
OTHERS = st.sampled_from([outcome for outcome in OUTCOMES if outcome != "rejected"])
ENDS = REJECTED | st.builds(QueryEnded, IDS, OTHERS, SHORT, TIMES, STAMPS)


def lanes(count: int) -> list[Lane]:
    descriptor = create_lanes(count, RECORDS)
    memory = mmap.mmap(descriptor, count * lane_bytes(RECORDS))
    os.close(descriptor)
    return [Lane(memory, index, RECORDS) for index in range(count)]


class LaneMachine(RuleBasedStateMachine):
    """The middle one of three lanes; the others stay empty."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.lane, self.behind = lanes(3)
        self.submitted: deque[Any] = deque()
        self.ended: deque[QueryEnded] = deque()

    @precondition(lambda self: len(self.submitted) < RECORDS)
    @rule(message=INFERS | st.builds(AbortQuery, IDS) | RANS)
    def submit(self, message: Any) -> None:
        self.lane.submit(message)
        self.submitted.append(message)

    @rule(most=st.integers(0, RECORDS + 1))
    def take(self, most: int) -> None:
        count = min(most, len(self.submitted))
        assert list(islice(self.lane.take(), most)) == [self.submitted.popleft() for _ in range(count)]

    @precondition(lambda self: len(self.ended) < RECORDS)
    @rule(ended=ENDS, tenant=NUMBERS, slot=NUMBERS)
    def end(self, ended: QueryEnded, tenant: int, slot: int) -> None:
        self.lane.end(ended, tenant, slot)
        self.ended.append(ended)

    @rule()
    def take_end(self) -> None:
        assert self.lane.take_end() == (self.ended.popleft() if self.ended else None)

    @rule()
    def take_all(self) -> None:
        assert list(self.lane.take()) == list(self.submitted)
        self.submitted.clear()

    @invariant()
    def only_what_waits(self) -> None:
        for other in (self.before, self.behind):
            assert not list(other.take()) and other.take_end() is None


TestLane = LaneMachine.TestCase


@given(st.text(st.characters(codec="utf-8"), max_size=2 * REASON_BYTES))
def test_a_long_reason_is_cut_at_a_character(reason: str) -> None:
    (lane,) = lanes(1)
    lane.end(QueryEnded(1, "failed", reason), 0, 0)
    found = lane.take_end()
    assert found is not None and reason.startswith(found.reason)
    if len(reason.encode()) <= REASON_BYTES:
        assert found.reason == reason
    else:
        assert REASON_BYTES - 3 <= len(found.reason.encode()) <= REASON_BYTES


@pytest.mark.parametrize("reason", ["x" * 191 + "ü", "x" * 190 + "€", "x" * 189 + "🙂", "x" * 193])
def test_where_reasons_are_cut(reason: str) -> None:
    (lane,) = lanes(1)
    lane.end(QueryEnded(1, "failed", reason), 0, 0)
    found = lane.take_end()
    assert found is not None and found.reason == reason.encode()[:REASON_BYTES].decode(errors="ignore")


@given(st.integers(1, 1 << 12))
def test_a_ring_has_room_for_three_records_of_each_slot(slots: int) -> None:
    records = ring_records(slots)
    assert records & (records - 1) == 0
    assert records >= 3 * slots
    assert native.library().wire_lane_bytes(records) == lane_bytes(records)
