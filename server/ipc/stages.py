"""`STAGES`: the stages of a query's way through the daemon, and how long each took, from stamps of one clock.

Front, engine and workers stamp CLOCK_MONOTONIC, which they share, so the stages add up to arrival … answer exactly.
`server/wire/queries.c` does for queries of the I/O threads what `stage_times` does here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Stage(NamedTuple):
    """A part of a query's way; the next one begins where it ends.

    >>> STAGES[0].name
    'read'
    """

    name: str
    begins: str
    ends: str


STAGES = (
    Stage("read", "the head of the request is here", "the front hands the query to the engine"),
    Stage("handoff", "the front hands the query to the engine", "the engine takes it"),
    Stage("wait", "the engine takes it", "its first block begins in a worker"),
    Stage("execute", "a block begins", "the block ends (summed over its blocks)"),
    Stage("gap", "a block ends", "the next one begins (summed over its blocks)"),
    Stage("report", "its last block ends", "the front is told"),
    Stage("answer", "the front is told", "the response is handed to the socket"),
)
READ, HANDOFF, WAIT, EXECUTE, GAP, REPORT, ANSWER = range(len(STAGES))

# A request that ended outside Python. `end_ns` is on the monotonic clock.
ENDED_REQUEST = np.dtype(
    [
        ("end_ns", np.int64),
        ("duration_ns", np.int64),  # arrival to answer
        ("stage_ns", np.int64, len(STAGES)),  # of an answered one; they add up to its duration
        ("batch", np.int32),
        ("outcome", np.int32),  # index into request_counts.OUTCOMES
        ("reason", np.int32),  # RefusalReason.number of a refused one, FailureReason.number of a failed one, else 0
    ]
)


class EngineStamps(NamedTuple):
    """When the engine and the worker passed a query on.

    >>> EngineStamps(taken_ns=120, begin_ns=150, end_ns=180, ended_ns=190).ended_ns
    190
    """

    taken_ns: int  # by the engine
    begin_ns: int  # of its first block; without blocks `ended_ns`, as the next
    end_ns: int  # of its last block
    ended_ns: int  # the front is told, by the worker or by the engine


NOT_STAMPED = EngineStamps(0, 0, 0, 0)


def stage_times(
    arrival_ns: int, submitted_ns: int, stamps: EngineStamps, execute_ns: int, answered_ns: int
) -> tuple[int, ...]:
    """How long each of STAGES took.

    >>> stage_times(100, 110, EngineStamps(120, 150, 180, 190), execute_ns=25, answered_ns=230)
    (10, 10, 30, 25, 5, 10, 40)
    """
    return (
        submitted_ns - arrival_ns,
        stamps.taken_ns - submitted_ns,
        stamps.begin_ns - stamps.taken_ns,
        execute_ns,
        stamps.end_ns - stamps.begin_ns - execute_ns,
        stamps.ended_ns - stamps.end_ns,
        answered_ns - stamps.ended_ns,
    )


def server_timing(stages: Sequence[int]) -> str:
    """The value of a Server-Timing header (W3C): milliseconds up to the first block, and in blocks.

    The I/O threads write the same (`query_timing` in `server/wire/queries.c`). Over gRPC it is trailing metadata.

    >>> server_timing((10_000, 2_000, 1_500_999, 4_000_000, 5, 10, 40))
    'queue;dur=1.512, compute;dur=4.000'
    """
    queue_us, compute_us = (max(0, ns) // 1000 for ns in (sum(stages[:EXECUTE]), stages[EXECUTE]))
    return f"queue;dur={queue_us // 1000}.{queue_us % 1000:03}, compute;dur={compute_us // 1000}.{compute_us % 1000:03}"
