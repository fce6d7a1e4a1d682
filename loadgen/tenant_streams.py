"""Each tenant's share of the load, made ready before the clock starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from veltair.errors import ConfigError
from veltair.loadgen.arrivals import tenant_rngs
from veltair.loadgen.client import Answer, Client, Outcome
from veltair.loadgen.grpc_client import GrpcClient
from veltair.loadgen.http_client import HttpClient
from veltair.loadgen.payloads import draw_payloads
from veltair.loadgen.scenario import Load, TenantLoad
from veltair.loadgen.shared_memory_client import SharingClient

POLL_S = 0.05  # between two looks at a daemon that is not idle yet
SLACK_NS = 1_000_000
SETTLE_S = 60.0  # a daemon that is not idle again by then will not be


@dataclass(frozen=True, slots=True)
class Stream:
    name: str
    qps: float
    target_ns: int
    percentile: float
    requests: tuple[bytes, ...]  # a query sends one of them, drawn by seed


async def connect(load: Load) -> Client:
    """Raises ConfigError when the target cannot be reached, or takes no shared memory where that is asked for."""
    kind: type[HttpClient | GrpcClient] = HttpClient if load.scheme == "http" else GrpcClient
    client = kind(load.host, load.port, load.timeout_s)
    await client.open(load.connections)
    if not load.shared_memory:
        return client
    try:
        return await SharingClient.over(client)
    except BaseException:
        await client.close()
        raise


async def prepare(client: Client, tenants: Sequence[TenantLoad], seed: int) -> list[Stream]:
    """Reads each model's metadata, draws its payloads and asks each once: what fails alone is a ConfigError."""
    streams = []
    for i, tenant in enumerate(tenants):
        meta = await client.describe(tenant.name)
        try:
            payloads = draw_payloads(meta, tenant.batch, tenant_rngs(seed, i).payloads)
        except ConfigError as error:
            raise ConfigError(f"tenants[{i}].{error}") from None
        requests = tuple(client.encode(meta, tensors) for tensors in payloads)
        answer = await client.send(requests[0])
        if answer.outcome is not Outcome.OK:
            raise ConfigError(f"model `{tenant.name}`: a first query failed: {answer.detail}")
        target_ns = round(tenant.target_ms * 1e6)
        streams.append(Stream(tenant.name, tenant.qps, target_ns, tenant.percentile, requests))
    return streams


async def solo_ns(client: Client, streams: Sequence[Stream], rounds: int = 3) -> list[int]:
    """The slowest of a few queries of each stream, sent one at a time to an idle daemon."""
    slowest = [0] * len(streams)
    for turn in range(rounds):
        for i, stream in enumerate(streams):
            elapsed, _ = await _timed(client, stream.requests[turn % len(stream.requests)])
            slowest[i] = max(slowest[i], elapsed)
    return slowest


async def settle(client: Client, streams: Sequence[Stream], alone_ns: Sequence[int]) -> None:
    """Return once the daemon is idle: a lone query of each stream takes about no more than twice what it took alone.

    Raises ConfigError when that has not come about after a minute.
    """
    give_up = time.monotonic() + SETTLE_S
    for stream, alone in zip(streams, alone_ns, strict=True):
        while True:
            elapsed, answer = await _timed(client, stream.requests[0])
            if answer.outcome is Outcome.OK and elapsed <= 2 * alone + SLACK_NS:
                break
            if time.monotonic() > give_up:
                why = answer.detail or f"a lone query took {elapsed / 1e6:.1f} ms"
                raise ConfigError(f"model `{stream.name}`: still not idle {SETTLE_S:g} s after a probe: {why}")
            await asyncio.sleep(POLL_S)


async def _timed(client: Client, request: bytes) -> tuple[int, Answer]:
    start = time.monotonic_ns()
    answer = await client.send(request)
    return time.monotonic_ns() - start, answer
