"""What holds for the senders of both protocols."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scripted_server import MS, failures

from veltair.loadgen.client import Outcome
from veltair.loadgen.open_loop import STOPPED_EARLY, ArrivalSchedule, Trace
from veltair.loadgen.tenant_streams import TenantStream


def check_a_stop(play: Callable[..., tuple[Trace, Any]], one_stream: Callable[..., list[TenantStream]]) -> None:
    """Nothing more is sent after a stop, and answers are waited for as long as the longest target: one is there, one
    never comes, and one query would be due in an hour."""
    hour_ms = 3_600_000.0
    arrival = np.array([0, MS, hour_ms * MS], np.int64)
    schedule = ArrivalSchedule(arrival, np.zeros(3, np.int64), np.arange(3), (0, round(2 * hour_ms * MS)))

    def before(server: Any, stop: asyncio.Event) -> None:
        server.on_request = lambda: stop.set() if len(server.requests) == 2 else None

    trace, server = play(one_stream(["ok", "hang", "ok"], target_ms=500), schedule, before=before)
    assert server.requests == ["ok", "hang"]
    assert trace.outcome.tolist() == [Outcome.OK, Outcome.ERROR, Outcome.UNSENT]
    assert failures(trace) == {STOPPED_EARLY: 1}
    assert MS <= trace.window_ns[1] <= trace.done_ns[1] - 500 * MS
    assert trace.sent_ns[2] == trace.done_ns[2] == 0


def check_mixture(trace: Trace, expected: Sequence[tuple[Outcome, str]], timeout_s: float) -> None:
    """Each query has its outcome and its reason, and nobody's is lost; those without an answer end at the timeout."""
    assert trace.outcome.tolist() == [outcome for outcome, _ in expected]
    assert failures(trace) == Counter(why for _, why in expected if why)
    assert (trace.sent_ns >= trace.schedule.arrival_ns).all() and (trace.done_ns >= trace.sent_ns).all()
    timed_out = np.array([why.startswith("no answer within") for _, why in expected])
    assert ((trace.done_ns - trace.sent_ns)[timed_out] >= timeout_s * 1000 * MS).all()
