from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import uvloop

from veltair.loadgen.client import Outcome, Response
from veltair.loadgen.open_loop import ArrivalSchedule, Trace, draw_schedule, run_open_loop
from veltair.loadgen.precise_timer import PreciseTimer
from veltair.loadgen.tenant_results import count_outcomes
from veltair.loadgen.tenant_streams import TenantStream

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
MS = 1_000_000


def stream(name: str, qps: float, requests: int = 4, target_ms: int = 10) -> TenantStream:
    return TenantStream(name, qps, target_ms * MS, 0.95, tuple(f"{name}{i}".encode() for i in range(requests)))


def schedule_of(*arrivals_ns: int, window_ns: tuple[int, int]) -> ArrivalSchedule:
    zeros = np.zeros(len(arrivals_ns), np.int64)
    return ArrivalSchedule(np.array(arrivals_ns, np.int64), zeros, zeros, window_ns)


class FakeClient:
    """A client whose responses the test decides: `respond` is awaited for each request."""

    def __init__(self, respond) -> None:
        self.respond, self.requests = respond, []

    async def send(self, request: bytes, tenant: int = 0) -> Response:
        self.requests.append(request)
        return await self.respond(len(self.requests))


def played(client, streams, schedule, stop_when=None) -> Trace:
    async def play() -> Trace:
        stop = asyncio.Event()
        if stop_when is not None:
            stop_when(stop)
        return await asyncio.wait_for(run_open_loop(client, streams, schedule, stop), 60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(play())


def test_the_schedule_merges_the_streams_in_order_and_depends_on_the_seed():
    streams = [stream("a", 50), stream("b", 200, requests=1)]
    schedule = draw_schedule(streams, 2.0, seed=3, warmup_s=1, duration_s=9)
    again = draw_schedule(streams, 2.0, seed=3, warmup_s=1, duration_s=9)
    other = draw_schedule(streams, 2.0, seed=4, warmup_s=1, duration_s=9)
    assert schedule.window_ns == (1_000 * MS, 10_000 * MS)
    assert (np.diff(schedule.arrival_ns) >= 0).all() and schedule.arrival_ns[-1] < 10_000 * MS
    counts = np.bincount(schedule.stream)
    assert counts[0] == pytest.approx(1000, rel=0.2) and counts[1] == pytest.approx(4000, rel=0.1)
    assert set(schedule.request[schedule.stream == 0]) == {0, 1, 2, 3}
    assert set(schedule.request[schedule.stream == 1]) == {0}
    for field in ("arrival_ns", "stream", "request"):
        np.testing.assert_array_equal(getattr(schedule, field), getattr(again, field))
    assert len(schedule.arrival_ns) != len(other.arrival_ns) or (schedule.arrival_ns != other.arrival_ns).any()


def test_a_tenants_arrivals_do_not_depend_on_the_others():
    alone = draw_schedule([stream("a", 50)], 1.0, 3, 0, 2)
    together = draw_schedule([stream("a", 50), stream("b", 70)], 1.0, 3, 0, 2)
    np.testing.assert_array_equal(alone.arrival_ns, together.arrival_ns[together.stream == 0])


def test_the_loop_is_open():
    """No query is answered before all have been sent: a generator that waited would never end."""
    streams = [stream("a", 500), stream("b", 500)]
    schedule = draw_schedule(streams, 1.0, 1, 0.05, 0.15)
    count = len(schedule.arrival_ns)
    all_sent = asyncio.Event()

    async def answer(nth: int) -> Response:
        if nth == count:
            all_sent.set()
        await all_sent.wait()
        return Response(Outcome.OK)

    client = FakeClient(answer)
    trace = played(client, streams, schedule)
    assert count > 100
    assert (trace.outcome == Outcome.OK).all()
    expected = [streams[s].requests[r] for s, r in zip(schedule.stream, schedule.request, strict=True)]
    assert client.requests == expected
    assert (trace.sent_ns >= schedule.arrival_ns).all()  # never early
    assert (trace.done_ns >= trace.sent_ns).all()
    assert trace.done_ns.min() >= schedule.arrival_ns[-1]


def test_outcomes_and_reasons_are_kept():
    kinds = [Response(Outcome.OK), Response(Outcome.REFUSED, "full"), Response(Outcome.ERROR, "broken")]

    async def answer(nth: int) -> Response:
        return kinds[nth % 3]

    trace = played(FakeClient(answer), [stream("a", 1)], schedule_of(*range(0, 9 * MS, MS), window_ns=(0, 9 * MS)))
    assert trace.outcome.tolist() == [2, 3, 1] * 3
    assert trace.failures == {(0, "full"): 3, (0, "broken"): 3}
    assert trace.window_ns == (0, 9 * MS)
    (found,) = count_outcomes(trace, [stream("a", 1)])
    assert (found.refused, found.errors, found.failures) == (3, 3, {"full": 3, "broken": 3})


def test_reasons_are_those_of_the_measured_window():
    async def answer(nth: int) -> Response:
        return Response(Outcome.REFUSED, "cold" if nth < 4 else "full")

    schedule = schedule_of(*range(0, 9 * MS, MS), window_ns=(4 * MS, 9 * MS))
    trace = played(FakeClient(answer), [stream("a", 1)], schedule)
    assert trace.failures == {(0, "full"): 5}
    assert count_outcomes(trace, [stream("a", 1)])[0].refused == 5


def test_a_run_without_a_single_arrival_ends():
    trace = played(FakeClient(None), [stream("a", 1)], schedule_of(window_ns=(0, MS)))
    assert len(trace.outcome) == 0


def test_stop_sends_nothing_more_and_reports_what_there_is():
    """One answered, one hanging, one that would be due in an hour."""
    hour = 3_600_000 * MS
    stop: list[asyncio.Event] = []

    async def answer(nth: int) -> Response:
        if nth == 2:
            stop[0].set()
            await asyncio.Event().wait()
        return Response(Outcome.OK)

    client = FakeClient(answer)
    schedule = schedule_of(0, MS, hour, window_ns=(0, 2 * hour))
    trace = played(client, [stream("a", 1)], schedule, stop_when=stop.append)
    assert len(client.requests) == 2
    assert trace.outcome.tolist() == [Outcome.OK, Outcome.ERROR, Outcome.UNSENT]
    assert trace.failures == {(0, "the run was stopped before an answer"): 1}
    assert MS <= trace.window_ns[1] < hour


def test_a_client_that_is_behind_still_hears_of_a_stop():
    stop: list[asyncio.Event] = []

    async def answer(nth: int) -> Response:
        stop[0].set()
        return Response(Outcome.OK)

    client = FakeClient(answer)
    trace = played(client, [stream("a", 1)], schedule_of(*[0] * 50_000, window_ns=(0, MS)), stop_when=stop.append)
    assert 0 < len(client.requests) < 50_000
    assert (trace.outcome != Outcome.UNSENT).sum() == len(client.requests)


def test_a_defect_of_the_client_is_not_swallowed():
    async def answer(nth: int) -> Response:
        raise KeyError("defect")

    with pytest.raises(KeyError, match="defect"):
        played(FakeClient(answer), [stream("a", 1)], schedule_of(0, window_ns=(0, MS)))


@pytest.mark.parametrize("new_loop", LOOPS)
def test_the_timer_never_rings_early(new_loop):
    async def play() -> list[int]:
        early = []
        with PreciseTimer() as timer:
            for delay_ns in (-MS, 0, 1, 1_000, 300_000, 3 * MS):
                due = time.monotonic_ns() + delay_ns
                await asyncio.wait_for(timer.wait_until(due), 60)
                early.append(time.monotonic_ns() - due)
        return early

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert min(runner.run(play())) >= 0


def test_the_timer_can_be_left_while_set():
    async def play() -> None:
        with PreciseTimer() as timer:
            waiting = asyncio.create_task(timer.wait_until(time.monotonic_ns() + 10 * MS))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            await asyncio.wait_for(timer.wait_until(time.monotonic_ns() + 20 * MS), 60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
