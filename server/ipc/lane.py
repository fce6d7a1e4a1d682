"""`Lane`: two rings of records in memory that one I/O thread of the front shares with the engine.

The engine's end of `server/wire/lane.c`. A ring has one writer and one reader; it never overruns, since a slot has one
query at a time, a query five records at most, and a thread orders nothing by itself while it is half full. Words of 8
bytes, each in a cache line pair of its own: the heads and tails of both rings; then the records.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from veltair.errors import RefusalReason
from veltair.server.ipc.messages import AbortQuery, InferQuery, Outcome, QueryEnded
from veltair.server.ipc.stages import EngineStamps

OUTCOMES: tuple[Outcome, ...] = ("done", "rejected", "cancelled", "failed", "worker_died")

_LINE_WORDS = 16
_QUERY_HEAD, _QUERY_TAIL, _END_HEAD, _END_TAIL = range(0, 4 * _LINE_WORDS, _LINE_WORDS)
_RECALLS = _END_TAIL + 1
_HEAD_BYTES = 8 * 4 * _LINE_WORDS
# id, kind, tenant, slot, batch, arrival, deadline, priority level, traced, left, refused, begin, end, ended
_QUERY = struct.Struct("<Q4i2q4i3q")
_END = struct.Struct("<QiiHHIq4q192s")  # id, tenant, slot, outcome, refusal, reason's bytes, execute, stamps, reason
_REASON_BYTES = 192
_INFER, _ABORT, _RAN, _HELD, _ALL = range(5)
_REFUSALS = tuple(RefusalReason)
_OUTCOME_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}


def ring_records(slots: int) -> int:
    """Records of each ring for this many queries at once: a power of two.

    >>> ring_records(256)
    2048
    """
    return 1 << max(8 * slots - 1, 1).bit_length()


def lane_bytes(records: int) -> int:
    return _HEAD_BYTES + records * (_QUERY.size + _END.size)


def create_lanes(lanes: int, records: int) -> int:
    """New memory for lanes, all empty. Returns its descriptor."""
    fd = os.memfd_create("veltair-lanes", os.MFD_CLOEXEC)
    os.truncate(fd, lanes * lane_bytes(records))
    return fd


class QueryRan(NamedTuple):
    """A query has been claimed, and answered: `QueryRan(7, 0, 3, 1, 100, False, False, 110, 130, 140)`."""

    query: int
    tenant: int  # TenantSpec.number
    slot: int
    batch: int
    arrival_ns: int
    left: bool  # nobody waited for it any more
    refused: bool  # it did not run, since it would have begun late
    begin_ns: int
    end_ns: int
    ended_ns: int  # when the front was told


class QueryHeld(NamedTuple):
    """A query that an I/O thread waits for, which the engine has asked about: `QueryHeld(infer_query)`."""

    message: InferQuery | None  # None: those before were all


class Lane:
    """One lane in the memory behind a descriptor of `create_lanes`.

    >>> lane = Lane(mmap.mmap(create_lanes(1, ring_records(4)), 0), lane=0, records=ring_records(4))
    >>> lane.submit(InferQuery(7, tenant=0, slot=3, batch=1, arrival_ns=100, deadline_ns=None))
    >>> [message.query for message in lane.take()]
    [7]
    >>> lane.end(QueryEnded(7, "done", execute_ns=2), tenant=0, slot=3)
    >>> lane.take_end().outcome
    'done'
    """

    def __init__(self, memory: mmap.mmap, lane: int, records: int) -> None:
        begin = lane * lane_bytes(records)
        self._memory = memory
        self._words = memoryview(memory)[begin : begin + _HEAD_BYTES].cast("Q")
        self._queries = begin + _HEAD_BYTES
        self._ends = self._queries + records * _QUERY.size
        self._records = records

    # The engine's side

    def take(self) -> Iterator[InferQuery | AbortQuery | QueryRan | QueryHeld]:
        """The messages from the front that are there now."""
        words, mask = self._words, self._records - 1
        head, tail = words[_QUERY_HEAD], words[_QUERY_TAIL]
        for at in range(head, tail):
            offset = self._queries + (at & mask) * _QUERY.size
            query, kind, tenant, slot, batch, arrival_ns, *how = _QUERY.unpack_from(self._memory, offset)
            words[_QUERY_HEAD] = at + 1
            deadline_ns, level, traced, left, refused, *stamps = how
            if kind in (_INFER, _HELD):
                infer = InferQuery(query, tenant, slot, batch, arrival_ns, deadline_ns or None, bool(traced), level)
                yield infer if kind == _INFER else QueryHeld(infer)
            elif kind == _ALL:
                yield QueryHeld(None)
            elif kind == _RAN:
                yield QueryRan(query, tenant, slot, batch, arrival_ns, bool(left), bool(refused), *stamps)
            else:
                yield AbortQuery(query)

    def end(self, ended: QueryEnded, tenant: int, slot: int) -> None:
        """Tell the front that a query has ended."""
        tail = self._words[_END_TAIL]
        refused = ended.outcome == "rejected"
        refusal, reason = (RefusalReason(ended.reason).number, b"") if refused else (0, _cut(ended.reason))
        offset = self._ends + (tail & self._records - 1) * _END.size
        _END.pack_into(
            self._memory,
            offset,
            ended.query,
            tenant,
            slot,
            _OUTCOME_CODES[ended.outcome],
            refusal,
            len(reason),
            ended.execute_ns,
            *ended.stamps,
            reason,
        )
        self._words[_END_TAIL] = tail + 1

    def recall(self) -> None:
        """Ask the thread for all queries that it waits for; it answers with a QueryHeld for each, and one without."""
        self._words[_RECALLS] += 1

    # The front's side, as the I/O threads do it

    def submit(self, message: InferQuery | AbortQuery | QueryRan) -> None:
        tail = self._words[_QUERY_TAIL]
        offset = self._queries + (tail & self._records - 1) * _QUERY.size
        if isinstance(message, AbortQuery):
            _QUERY.pack_into(self._memory, offset, message.query, _ABORT, *[0] * 12)
        elif isinstance(message, QueryRan):
            query, tenant, slot, batch, arrival_ns, left, refused, *stamps = message
            where = query, _RAN, tenant, slot, batch
            _QUERY.pack_into(self._memory, offset, *where, arrival_ns, 0, 0, 0, left, refused, *stamps)
        else:
            _QUERY.pack_into(
                self._memory,
                offset,
                message.query,
                _INFER,
                message.tenant,
                message.slot,
                message.batch,
                message.arrival_ns,
                message.deadline_ns or 0,
                message.priority_level,
                message.traced,
                *[0] * 5,
            )
        self._words[_QUERY_TAIL] = tail + 1

    def take_end(self) -> QueryEnded | None:
        """The next end of a query; None when there is none."""
        head = self._words[_END_HEAD]
        if head == self._words[_END_TAIL]:
            return None
        offset = self._ends + (head & self._records - 1) * _END.size
        query, _, _, code, refusal, size, execute_ns, *stamps, reason = _END.unpack_from(self._memory, offset)
        self._words[_END_HEAD] = head + 1
        text = _REFUSALS[refusal - 1] if refusal else reason[:size].decode(errors="replace")
        return QueryEnded(query, OUTCOMES[code], text, execute_ns, EngineStamps(*stamps))


def _cut(reason: str) -> bytes:
    """The reason, as much of it as a record has room for, in whole characters."""
    encoded = reason.encode(errors="replace")
    return encoded if len(encoded) <= _REASON_BYTES else encoded[:_REASON_BYTES].decode(errors="ignore").encode()
