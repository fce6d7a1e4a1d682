"""Chooses the sender of a schedule: the native one where it was built, else the one in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from veltair.loadgen import native_sender
from veltair.loadgen.client import InferenceClient
from veltair.loadgen.grpc_client import GrpcClient
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.open_loop import ArrivalSchedule, RunCounts, Trace, run_open_loop
from veltair.loadgen.shared_memory_client import SharedMemoryClient
from veltair.loadgen.tenant_streams import TenantStream


async def run_schedule(
    client: InferenceClient,
    streams: Sequence[TenantStream],
    schedule: ArrivalSchedule,
    stop: asyncio.Event,
    counts: RunCounts | None = None,
) -> Trace:
    """Send the queries of a schedule at their times and wait for their outcomes, as `run_open_loop` describes.

    ::

        trace = await run_schedule(client, streams, draw_schedule(streams, 1.0, 1, 2, 30), asyncio.Event())

    Args:
        counts: written during the run, for whoever shows its progress.
    """
    counts = counts or RunCounts()
    wrapped = client.client if isinstance(client, SharedMemoryClient) else client
    if isinstance(wrapped, GrpcClient | HttpClient) and native_sender.is_available():
        return await native_sender.NativeRun(wrapped.call_settings, streams, schedule, counts).run(stop)
    return await run_open_loop(client, streams, schedule, stop, counts)
