# ruff: noqa: N802 (method names are the protocol's)
"""`HealthChecks`: gRPC's health protocol, which says what `/v2/health/ready` says, of the server and of each model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from grpc_health.v1 import health, health_pb2

PERIOD_S = 0.25  # within which watchers hear of a change

_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class HealthChecks(health.aio.HealthServicer):  # type: ignore[misc]
    """The servicer of grpc.health.v1.

    ::

        checks = HealthChecks(lambda: engine.ready, lambda: ["", "inference.GRPCInferenceService", "resnet50"])
        await checks.start()
        await checks.stop()  # NOT_SERVING from here on
    """

    def __init__(self, ready: Callable[[], bool], names: Callable[[], Collection[str]]) -> None:
        """`names`: of services and of the models that are served now; "" is the whole server."""
        super().__init__()
        self._ready, self._names = ready, names
        self._told: dict[str, bool] = {}
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._refresh()
        self._follower = asyncio.create_task(self._follow())

    async def Check(self, request: Any, context: Any) -> Any:
        await self._refresh()
        return await super().Check(request, context)

    async def stop(self) -> None:
        """The server is shutting down."""
        if self._follower is not None:
            self._follower.cancel()
        await self.enter_graceful_shutdown()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            await self._refresh()

    async def _refresh(self) -> None:
        ready, names = self._ready(), self._names()
        now = dict.fromkeys(self._told, False) | dict.fromkeys(names, ready)  # what is gone serves no longer
        before, self._told = self._told, now
        for name, serving in now.items():
            if before.get(name) != serving:
                await self.set(name, _SERVING if serving else _NOT_SERVING)
