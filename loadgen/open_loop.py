"""The open loop: each query is sent at its scheduled time, whatever has become of those before it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veltair.loadgen.arrivals import Times, arrivals_ns, tenant_rngs
from veltair.loadgen.client import Client, Outcome
from veltair.loadgen.precise_timer import Alarm
from veltair.loadgen.tenant_streams import Stream


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Every query of a run in the order of its arrival; times in ns from the start of the run."""

    arrival_ns: Times  # (queries,)
    stream: NDArray[np.int64]  # (queries,) index of the tenant's stream
    request: NDArray[np.int64]  # (queries,) index within the stream's requests
    window_ns: tuple[int, int]  # arrivals within [start, stop) are measured, those before are the warm-up


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What became of a plan's queries; times in ns from the start of the run."""

    plan: Plan
    sent_ns: Times  # (queries,) 0 where unsent
    done_ns: Times  # (queries,) 0 where unsent
    outcome: NDArray[np.int8]  # (queries,) of Outcome
    window_ns: tuple[int, int]  # the plan's, cut short where the run was
    failures: Counter[tuple[int, str]]  # (stream, why) of the refused and the failed


def draw_plan(streams: Sequence[Stream], scale: float, seed: int, warmup_s: float, duration_s: float) -> Plan:
    """The queries of all streams at `scale` times their rates; the same seed gives the same plan."""
    start, stop = round(warmup_s * 1e9), round((warmup_s + duration_s) * 1e9)
    rngs = [tenant_rngs(seed, i) for i in range(len(streams))]
    times = [arrivals_ns(s.qps * scale, stop, rng.arrivals) for s, rng in zip(streams, rngs, strict=True)]
    picks = [r.picks.integers(0, len(s.requests), len(t)) for s, t, r in zip(streams, times, rngs, strict=True)]
    arrival = np.concatenate(times)
    order = np.argsort(arrival, kind="stable")
    owner = np.repeat(np.arange(len(streams)), [len(t) for t in times])
    return Plan(arrival[order], owner[order], np.concatenate(picks)[order], (start, stop))


async def drive(
    client: Client,
    streams: Sequence[Stream],
    plan: Plan,
    stop: asyncio.Event,
) -> Trace:
    """Send the plan's queries and wait until each has its outcome (a client times out by itself).

    When `stop` is set nothing more is sent, and what is unanswered after the longest target is an error: it has
    missed its target anyway.
    """
    count = len(plan.arrival_ns)
    arrival: list[int] = plan.arrival_ns.tolist()
    owner: list[int] = plan.stream.tolist()
    request: list[int] = plan.request.tolist()
    sent, done, outcome = [0] * count, [0] * count, [0] * count
    failures: Counter[tuple[int, str]] = Counter()
    pending: set[asyncio.Task[None]] = set()
    defects: list[BaseException] = []
    create_task = asyncio.get_running_loop().create_task

    async def query(i: int) -> None:
        stream = owner[i]
        sent[i] = time.monotonic_ns() - start
        outcome[i], why = Outcome.ERROR, "the run was stopped before an answer"  # if cancelled
        try:
            answer = await client.send(streams[stream].requests[request[i]])
            outcome[i], why = answer.outcome, answer.detail
        finally:
            done[i] = time.monotonic_ns() - start
            if outcome[i] != Outcome.OK:
                failures[stream, why] += 1

    def finished(task: asyncio.Task[None]) -> None:
        pending.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            defects.append(defect)

    async def send_all(alarm: Alarm) -> None:
        for i in range(count):
            await alarm.until(start + arrival[i])
            task = create_task(query(i))
            pending.add(task)
            task.add_done_callback(finished)
        await alarm.until(start + plan.window_ns[1])

    gc.collect()
    gc.freeze()  # a collection that walks every request would delay the queries that come meanwhile
    start = time.monotonic_ns()
    try:
        with Alarm() as alarm:
            sending, stopping = create_task(send_all(alarm)), create_task(stop.wait())
            await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopped = not sending.done()
            await _end(sending, stopping)
        cut = time.monotonic_ns() - start if stopped else plan.window_ns[1]
        if pending:
            patience_s = max(s.target_ns for s in streams) / 1e9 if stopped else None
            await asyncio.wait(pending, timeout=patience_s)
            await _end(*pending)
    finally:
        gc.unfreeze()
    if defects:  # of the client's code: whatever a server does is an outcome
        raise defects[0]
    window = (min(plan.window_ns[0], cut), min(plan.window_ns[1], cut))
    return Trace(
        plan,
        np.array(sent, np.int64),
        np.array(done, np.int64),
        np.array(outcome, np.int8),
        window,
        failures,
    )


async def _end(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    """Cancel what still runs and hand on what broke."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
