"""`Machine`: the replica, which has one daemon in processes of its own and passes requests on to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import ray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from veltair.api.daemon import Daemon
from veltair.errors import VeltairError
from veltair.ray.arguments import group_config, read_arguments
from veltair.ray.passage import CallContext, EncodedMessage, GrpcPassage, HttpPassage
from veltair.ray.servicer import STREAM_METHOD, UNARY_METHODS

READY = "/v2/health/ready"
READY_S = 2.0  # for the daemon's answer
GONE = "the daemon of this machine does not answer; try again"


class Machine:
    """A replica of a group of tenants: it serves as long as its daemon does.

    The daemon is a child with a pipe as its stdin, so it drains and ends when this process is gone, however that ended;
    engine and workers end with it.
    """

    async def __init__(self, arguments: Mapping[str, Any], group: str) -> None:
        """Returns once the daemon is ready. Raises VeltairError with the node where it does not start."""
        self._daemon: Daemon | None = None
        node = ray.util.get_node_ip_address()
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's: one, or `num_cpus`; the daemon finds its cores by itself
        try:
            self._config = group_config(read_arguments(arguments), group)
            self._daemon = await asyncio.to_thread(Daemon, self._config)
        except VeltairError as error:
            raise type(error)(f"node {node}: {error}") from None
        self._grpc = GrpcPassage(self._daemon.grpc)
        self._http = HttpPassage(self._daemon.http, _unavailable)
        await self.check_health()

    async def check_health(self) -> None:
        """Raises VeltairError unless the daemon says that it is ready."""
        if self._daemon is None or not self._daemon.running:
            raise VeltairError("the daemon has ended")
        try:
            status = await self._http.status(READY, READY_S)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise VeltairError(f"the daemon does not answer ({type(error).__name__})") from None
        if status != 200:
            raise VeltairError(f"the daemon is not ready (HTTP status {status})")

    async def __call__(self, request: Request) -> Response:
        """A request over HTTP."""
        return await self._http.forward(request)

    async def ModelStreamInfer(  # noqa: N802  the service's name
        self, requests: AsyncIterator[bytes], grpc_context: CallContext
    ) -> AsyncIterator[EncodedMessage]:
        """Queries one after the other on a stream, over gRPC."""
        async for message in self._grpc.stream(STREAM_METHOD, requests, grpc_context):
            yield message

    async def _call(self, method: str, request: bytes, context: CallContext) -> EncodedMessage:
        return await self._grpc.call(method, request, context)

    def __del__(self) -> None:
        """Ray calls this once no request is left: what the daemon has accepted from elsewhere is answered too."""
        if self._daemon is not None:
            self._daemon.stop()


def _unavailable() -> Response:
    return JSONResponse({"error": GONE}, 503, {"Retry-After": "1"})


def _unary(method: str) -> Callable[[Machine, bytes, CallContext], Awaitable[EncodedMessage]]:
    async def call(self: Machine, request: bytes, grpc_context: CallContext) -> EncodedMessage:
        return await self._call(method, request, grpc_context)

    call.__name__, call.__qualname__ = method, f"Machine.{method}"
    return call


for _method in UNARY_METHODS:
    setattr(Machine, _method, _unary(_method))
