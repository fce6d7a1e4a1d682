"""gRPC's health protocol without a server: what a check says, and what watchers hear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from veltair.server.protocol.health_checks import HealthChecks

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
WAIT_S = 30.0


class AbortedError(Exception):
    pass


class Context:
    """Of a call: what it was told, and how it was ended."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.heard = asyncio.Event()

    async def write(self, response: Any) -> None:
        self.told.append(response.status)
        self.heard.set()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise AbortedError(code, details)


def ask(name: str) -> Any:
    return health_pb2.HealthCheckRequest(service=name)


async def until(context: Context, told: Callable[[list[int]], bool]) -> None:
    while not told(context.told):
        context.heard.clear()
        await asyncio.wait_for(context.heard.wait(), WAIT_S)


def test_what_is_gone_serves_no_longer_and_what_never_was_is_unknown() -> None:
    names = {"", "a"}
    checks = HealthChecks(lambda: True, lambda: names)

    async def check(name: str) -> int:
        return int((await checks.Check(ask(name), Context())).status)

    assert asyncio.run(check("a")) == SERVING
    names.remove("a")
    assert asyncio.run(check("a")) == NOT_SERVING and asyncio.run(check("")) == SERVING
    with pytest.raises(AbortedError, match="unknown service 'b'"):
        asyncio.run(check("b"))
    checks.end()
    assert asyncio.run(check("")) == NOT_SERVING


def test_a_watcher_that_leaves_does_not_silence_the_others() -> None:
    async def watch() -> list[list[int]]:
        ready, names = [True], {"a"}
        checks = HealthChecks(lambda: ready[0], lambda: names)
        contexts = [Context(), Context(), Context()]
        watching = [
            asyncio.create_task(checks.Watch(ask(name), context))
            for name, context in zip(("a", "a", "b"), contexts, strict=True)
        ]
        for context in contexts:
            await until(context, bool)
        watching.pop(0).cancel()
        ready[0] = False
        names.add("b")
        await until(contexts[1], lambda told: told[-1] == NOT_SERVING)
        ready[0] = True
        for context in contexts[1:]:
            await until(context, lambda told: told[-1] == SERVING)
        for each in watching:
            each.cancel()
        return [context.told for context in contexts]

    left, stayed, later = asyncio.run(watch())
    assert left == [SERVING] and stayed == [SERVING, NOT_SERVING, SERVING]
    assert later[0] == UNKNOWN and later[-1] == SERVING
