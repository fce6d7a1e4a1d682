# ruff: noqa: N802 (method names are the protocol's)
"""`HealthChecks`: gRPC's health protocol, which says what `/v2/health/ready` says, of the server and of each model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from veltair.errors import quoted

PERIOD_S = 0.25  # within which watchers hear of a change

_Response = health_pb2.HealthCheckResponse


class HealthChecks(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The servicer of grpc.health.v1. Each watcher looks for itself, so that without one nothing wakes an idle front.

    ::

        checks = HealthChecks(lambda: engine.ready, lambda: ["", "inference.GRPCInferenceService", "resnet50"])
        checks.end()  # NOT_SERVING from here on
    """

    def __init__(self, ready: Callable[[], bool], names: Callable[[], Collection[str]]) -> None:
        """`names`: of services and of the models that are served now; "" is the whole server."""
        self._ready, self._names = ready, names
        self._known: set[str] = set()  # what was served once is NOT_SERVING when it is gone, and not unknown
        self._ended = False

    def end(self) -> None:
        """The server is shutting down."""
        self._ended = True

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status_of(request.service)
        if status == _Response.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {quoted(request.service)}")
        return _Response(status=status)

    async def Watch(self, request: Any, context: Any) -> None:
        told = None
        while True:
            status = self._status_of(request.service)
            if status != told:
                await context.write(_Response(status=status))
                told = status
            await asyncio.sleep(PERIOD_S)

    def _status_of(self, service: str) -> int:
        served = set(self._names())
        self._known |= served
        if service not in self._known:
            return int(_Response.SERVICE_UNKNOWN)
        serving = service in served and self._ready() and not self._ended
        return int(_Response.SERVING if serving else _Response.NOT_SERVING)
