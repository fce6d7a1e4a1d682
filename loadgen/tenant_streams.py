"""Each tenant's requests, prepared before the run; and the daemon's state between runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from veltair.errors import ConfigError
from veltair.loadgen.arrivals import tenant_rngs
from veltair.loadgen.client import InferenceClient, Outcome, Response
from veltair.loadgen.grpc_client import GrpcClient
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.payloads import draw_payloads
from veltair.loadgen.scenario import LoadSettings, TenantLoad
from veltair.loadgen.shared_memory_client import SharedMemoryClient

POLL_S = 0.05  # between two checks whether the daemon is idle
SLACK_NS = 1_000_000
SETTLE_S = 60.0  # a daemon that is not idle by then will not become so


@dataclass(frozen=True, slots=True)
class TenantStream:
    """One tenant's share of the load.

    >>> TenantStream("m", qps=100.0, target_ns=5_000_000, percentile=0.95, requests=(b"...",)).qps
    100.0
    """

    name: str
    qps: float
    target_ns: int
    percentile: float
    requests: tuple[bytes, ...]  # a query sends one of them, drawn by seed


async def connect(load: LoadSettings) -> InferenceClient:
    """A client of the target. Raises ConfigError when it cannot be reached, or refuses shared memory that is wanted."""
    kind: type[HttpClient | GrpcClient] = HttpClient if load.scheme == "http" else GrpcClient
    client = kind(load.host, load.port, load.timeout_s)
    await client.open(load.connections)
    if not load.shared_memory:
        return client
    try:
        return await SharedMemoryClient.register(client)
    except BaseException:
        await client.close()
        raise


async def prepare_streams(client: InferenceClient, tenants: Sequence[TenantLoad], seed: int) -> list[TenantStream]:
    """Read each model's metadata, draw its payloads and try one request.

    Raises ConfigError for a model that fails even alone.
    """
    streams = []
    for i, tenant in enumerate(tenants):
        meta = await client.describe(tenant.name)
        try:
            payloads = draw_payloads(meta, tenant.batch, tenant_rngs(seed, i).payloads)
        except ConfigError as error:
            raise ConfigError(f"tenants[{i}].{error}") from None
        requests = tuple(client.encode(meta, tensors) for tensors in payloads)
        response = await client.send(requests[0])
        if response.outcome is not Outcome.OK:
            raise ConfigError(f"model `{tenant.name}`: a first query failed: {response.detail}")
        target_ns = round(tenant.target_ms * 1e6)
        streams.append(TenantStream(tenant.name, tenant.qps, target_ns, tenant.percentile, requests))
    return streams


async def measure_solo_ns(client: InferenceClient, streams: Sequence[TenantStream], rounds: int = 3) -> list[int]:
    """Latency in ns of the slowest of `rounds` queries of each stream, sent one at a time to an idle daemon."""
    slowest = [0] * len(streams)
    for i_round in range(rounds):
        for i, stream in enumerate(streams):
            elapsed, _ = await _timed(client, stream.requests[i_round % len(stream.requests)])
            slowest[i] = max(slowest[i], elapsed)
    return slowest


async def wait_until_idle(client: InferenceClient, streams: Sequence[TenantStream], alone_ns: Sequence[int]) -> None:
    """Wait until the daemon is idle: a lone query of each stream takes at most about twice its solo latency.

    alone_ns: solo latencies by stream. Raises ConfigError when the daemon is not idle after a minute.
    """
    give_up = time.monotonic() + SETTLE_S
    for stream, alone in zip(streams, alone_ns, strict=True):
        while True:
            elapsed, response = await _timed(client, stream.requests[0])
            if response.outcome is Outcome.OK and elapsed <= 2 * alone + SLACK_NS:
                break
            if time.monotonic() > give_up:
                why = response.detail or f"a lone query took {elapsed / 1e6:.1f} ms"
                raise ConfigError(f"model `{stream.name}`: still not idle {SETTLE_S:g} s after a probe: {why}")
            await asyncio.sleep(POLL_S)


async def _timed(client: InferenceClient, request: bytes) -> tuple[int, Response]:
    start = time.monotonic_ns()
    response = await client.send(request)
    return time.monotonic_ns() - start, response
