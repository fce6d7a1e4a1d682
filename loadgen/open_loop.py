"""An open-loop load: each query is sent at its scheduled time, whatever has become of the queries before it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from veltair.loadgen.arrivals import Times, poisson_arrivals_ns, tenant_rngs
from veltair.loadgen.client import InferenceClient, Outcome
from veltair.loadgen.precise_timer import PreciseTimer
from veltair.loadgen.tenant_streams import TenantStream

STOPPED_EARLY = "the run was stopped before an answer"


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalSchedule:
    """All queries of a run in the order of their arrival; times in ns from the start of the run.

    ::

        schedule = draw_schedule(streams, scale=1.0, seed=1, warmup_s=2, duration_s=30)
        trace = await run_open_loop(client, streams, schedule, asyncio.Event())
    """

    arrival_ns: Times  # (queries,)
    stream: NDArray[np.int64]  # (queries,) index of the tenant's stream
    request: NDArray[np.int64]  # (queries,) index within the stream's requests
    window_ns: tuple[int, int]  # [start, stop): arrivals within it are measured, earlier ones are the warm-up


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What became of the queries of a schedule; times in ns from the start of the run.

    ::

        trace = await run_open_loop(client, streams, schedule, asyncio.Event())
        latency_ns = (trace.done_ns - schedule.arrival_ns)[trace.outcome == Outcome.OK]
    """

    schedule: ArrivalSchedule
    sent_ns: Times  # (queries,) 0 where unsent
    done_ns: Times  # (queries,) 0 where unsent
    outcome: NDArray[np.int8]  # (queries,) of Outcome
    window_ns: tuple[int, int]  # the schedule's, cut short if the run was
    failures: Counter[tuple[int, str]]  # (stream, reason) of refused and failed queries behind the warm-up
    cpu_ns: int  # CPU time of this process during the run


class RunCounts(ctypes.Structure):
    """How many queries were sent and are done, counted during the run; native code writes it too.

    >>> RunCounts(sent=3, done=1).sent
    3
    """

    _fields_ = (("sent", ctypes.c_int64), ("done", ctypes.c_int64))


def draw_schedule(
    streams: Sequence[TenantStream], scale: float, seed: int, warmup_s: float, duration_s: float
) -> ArrivalSchedule:
    """The queries of all streams at `scale` times their rates. The same seed gives the same schedule."""
    start, stop = round(warmup_s * 1e9), round((warmup_s + duration_s) * 1e9)
    rngs = [tenant_rngs(seed, i) for i in range(len(streams))]
    times = [poisson_arrivals_ns(s.qps * scale, stop, rng.arrivals) for s, rng in zip(streams, rngs, strict=True)]
    picks = [r.picks.integers(0, len(s.requests), len(t)) for s, t, r in zip(streams, times, rngs, strict=True)]
    arrival = np.concatenate(times)
    order = np.argsort(arrival, kind="stable")
    owner = np.repeat(np.arange(len(streams)), [len(t) for t in times])
    return ArrivalSchedule(arrival[order], owner[order], np.concatenate(picks)[order], (start, stop))


async def run_open_loop(
    client: InferenceClient,
    streams: Sequence[TenantStream],
    schedule: ArrivalSchedule,
    stop: asyncio.Event,
    counts: RunCounts | None = None,
) -> Trace:
    """Send the queries of a schedule and wait until each has its outcome (clients have timeouts of their own).

    Once `stop` is set nothing more is sent. A query without a response after the longest target is then an error: it
    has missed its target anyway.
    """
    counts = counts or RunCounts()
    count = len(schedule.arrival_ns)
    arrival: list[int] = schedule.arrival_ns.tolist()
    owner: list[int] = schedule.stream.tolist()
    request: list[int] = schedule.request.tolist()
    sent, done, outcome = [0] * count, [0] * count, [0] * count
    failures: Counter[tuple[int, str]] = Counter()
    pending: set[asyncio.Task[None]] = set()
    defects: list[BaseException] = []
    create_task = asyncio.get_running_loop().create_task

    async def query(i: int) -> None:
        stream = owner[i]
        sent[i] = time.monotonic_ns() - start
        counts.sent += 1
        outcome[i], why = Outcome.ERROR, STOPPED_EARLY  # if cancelled
        try:
            response = await client.send(streams[stream].requests[request[i]], stream)
            outcome[i], why = response.outcome, response.detail
        finally:
            done[i] = time.monotonic_ns() - start
            counts.done += 1
            if outcome[i] != Outcome.OK and arrival[i] >= schedule.window_ns[0]:
                failures[stream, why] += 1

    def finished(task: asyncio.Task[None]) -> None:
        pending.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            defects.append(defect)

    async def send_all(timer: PreciseTimer) -> None:
        for i in range(count):
            await timer.wait_until(start + arrival[i])
            task = create_task(query(i))
            pending.add(task)
            task.add_done_callback(finished)
        await timer.wait_until(start + schedule.window_ns[1])

    gc.collect()
    gc.freeze()  # a collection that walks all requests would delay the queries that are due meanwhile
    start, cpu_ns = time.monotonic_ns(), time.process_time_ns()
    try:
        with PreciseTimer() as timer:
            sending, stopping = create_task(send_all(timer)), create_task(stop.wait())
            await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopped = not sending.done()
            await _cancel(sending, stopping)
        cut = time.monotonic_ns() - start if stopped else schedule.window_ns[1]
        until_ns = start + cut + max(s.target_ns for s in streams) if stopped else inf
        while pending and (left_ns := until_ns - time.monotonic_ns()) > 0:  # uvloop's timers end up to 1 ms early
            await asyncio.wait(pending, timeout=left_ns / 1e9 if stopped else None)
        await _cancel(*pending)
    finally:
        gc.unfreeze()
    if defects:  # in the client's code: whatever a server does is an outcome
        raise defects[0]
    window = (min(schedule.window_ns[0], cut), min(schedule.window_ns[1], cut))
    return Trace(
        schedule,
        np.array(sent, np.int64),
        np.array(done, np.int64),
        np.array(outcome, np.int8),
        window,
        failures,
        time.process_time_ns() - cpu_ns,
    )


async def _cancel(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    """Cancel the tasks that still run, and raise the error of one that failed."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
