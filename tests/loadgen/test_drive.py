from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import uvloop

from veltair.loadgen.client import Answer, Outcome
from veltair.loadgen.open_loop import Plan, Trace, draw_plan, drive
from veltair.loadgen.precise_timer import Alarm
from veltair.loadgen.tenant_streams import Stream

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
MS = 1_000_000


def stream(name: str, qps: float, requests: int = 4, target_ms: int = 10) -> Stream:
    return Stream(name, qps, target_ms * MS, 0.95, tuple(f"{name}{i}".encode() for i in range(requests)))


def plan_of(*arrivals_ns: int, window_ns: tuple[int, int]) -> Plan:
    zeros = np.zeros(len(arrivals_ns), np.int64)
    return Plan(np.array(arrivals_ns, np.int64), zeros, zeros, window_ns)


class Fake:
    """A client whose answers the test decides: `answer` is awaited for each request."""

    def __init__(self, answer) -> None:
        self.answer, self.requests = answer, []

    async def send(self, request: bytes) -> Answer:
        self.requests.append(request)
        return await self.answer(len(self.requests))


def played(client, streams, plan, stop_when=None) -> Trace:
    async def play() -> Trace:
        stop = asyncio.Event()
        if stop_when is not None:
            stop_when(stop)
        return await asyncio.wait_for(drive(client, streams, plan, stop), 60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(play())


def test_the_plan_merges_the_streams_in_order_and_is_the_seeds():
    streams = [stream("a", 50), stream("b", 200, requests=1)]
    plan = draw_plan(streams, 2.0, seed=3, warmup_s=1, duration_s=9)
    again = draw_plan(streams, 2.0, seed=3, warmup_s=1, duration_s=9)
    other = draw_plan(streams, 2.0, seed=4, warmup_s=1, duration_s=9)
    assert plan.window_ns == (1_000 * MS, 10_000 * MS)
    assert (np.diff(plan.arrival_ns) >= 0).all() and plan.arrival_ns[-1] < 10_000 * MS
    counts = np.bincount(plan.stream)
    assert counts[0] == pytest.approx(1000, rel=0.2) and counts[1] == pytest.approx(4000, rel=0.1)
    assert set(plan.request[plan.stream == 0]) == {0, 1, 2, 3}
    assert set(plan.request[plan.stream == 1]) == {0}
    for field in ("arrival_ns", "stream", "request"):
        np.testing.assert_array_equal(getattr(plan, field), getattr(again, field))
    assert len(plan.arrival_ns) != len(other.arrival_ns) or (plan.arrival_ns != other.arrival_ns).any()


def test_a_tenants_arrivals_do_not_depend_on_the_others():
    alone = draw_plan([stream("a", 50)], 1.0, 3, 0, 2)
    together = draw_plan([stream("a", 50), stream("b", 70)], 1.0, 3, 0, 2)
    np.testing.assert_array_equal(alone.arrival_ns, together.arrival_ns[together.stream == 0])


def test_the_loop_is_open():
    """No query is answered before all have been sent: a generator that waited would never end."""
    streams = [stream("a", 500), stream("b", 500)]
    plan = draw_plan(streams, 1.0, 1, 0.05, 0.15)
    count = len(plan.arrival_ns)
    all_sent = asyncio.Event()

    async def answer(nth: int) -> Answer:
        if nth == count:
            all_sent.set()
        await all_sent.wait()
        return Answer(Outcome.OK)

    client = Fake(answer)
    trace = played(client, streams, plan)
    assert count > 100
    assert (trace.outcome == Outcome.OK).all()
    expected = [streams[s].requests[r] for s, r in zip(plan.stream, plan.request, strict=True)]
    assert client.requests == expected
    assert (trace.sent_ns >= plan.arrival_ns).all()  # never early
    assert (trace.done_ns >= trace.sent_ns).all()
    assert trace.done_ns.min() >= plan.arrival_ns[-1]


def test_outcomes_and_reasons_are_kept():
    kinds = [Answer(Outcome.OK), Answer(Outcome.REFUSED, "full"), Answer(Outcome.ERROR, "broken")]

    async def answer(nth: int) -> Answer:
        return kinds[nth % 3]

    trace = played(Fake(answer), [stream("a", 1)], plan_of(*range(0, 9 * MS, MS), window_ns=(0, 9 * MS)))
    assert trace.outcome.tolist() == [2, 3, 1] * 3
    assert trace.failures == {(0, "full"): 3, (0, "broken"): 3}
    assert trace.window_ns == (0, 9 * MS)


def test_a_run_without_a_single_arrival_ends():
    trace = played(Fake(None), [stream("a", 1)], plan_of(window_ns=(0, MS)))
    assert len(trace.outcome) == 0


def test_stop_sends_nothing_more_and_reports_what_there_is():
    """One answered, one hanging, one that would be due in an hour."""
    hour = 3_600_000 * MS
    stop: list[asyncio.Event] = []

    async def answer(nth: int) -> Answer:
        if nth == 2:
            stop[0].set()
            await asyncio.Event().wait()
        return Answer(Outcome.OK)

    client = Fake(answer)
    plan = plan_of(0, MS, hour, window_ns=(0, 2 * hour))
    trace = played(client, [stream("a", 1)], plan, stop_when=stop.append)
    assert len(client.requests) == 2
    assert trace.outcome.tolist() == [Outcome.OK, Outcome.ERROR, Outcome.UNSENT]
    assert trace.failures == {(0, "the run was stopped before an answer"): 1}
    assert MS <= trace.window_ns[1] < hour


def test_a_client_that_is_behind_still_hears_of_a_stop():
    stop: list[asyncio.Event] = []

    async def answer(nth: int) -> Answer:
        stop[0].set()
        return Answer(Outcome.OK)

    client = Fake(answer)
    trace = played(client, [stream("a", 1)], plan_of(*[0] * 50_000, window_ns=(0, MS)), stop_when=stop.append)
    assert 0 < len(client.requests) < 50_000
    assert (trace.outcome != Outcome.UNSENT).sum() == len(client.requests)


def test_a_defect_of_the_client_is_not_swallowed():
    async def answer(nth: int) -> Answer:
        raise KeyError("defect")

    with pytest.raises(KeyError, match="defect"):
        played(Fake(answer), [stream("a", 1)], plan_of(0, window_ns=(0, MS)))


@pytest.mark.parametrize("new_loop", LOOPS)
def test_the_alarm_never_rings_early(new_loop):
    async def play() -> list[int]:
        early = []
        with Alarm() as alarm:
            for delay_ns in (-MS, 0, 1, 1_000, 300_000, 3 * MS):
                due = time.monotonic_ns() + delay_ns
                await asyncio.wait_for(alarm.until(due), 60)
                early.append(time.monotonic_ns() - due)
        return early

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert min(runner.run(play())) >= 0


def test_the_alarm_can_be_left_while_set():
    async def play() -> None:
        with Alarm() as alarm:
            waiting = asyncio.create_task(alarm.until(time.monotonic_ns() + 10 * MS))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            await asyncio.wait_for(alarm.until(time.monotonic_ns() + 20 * MS), 60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
