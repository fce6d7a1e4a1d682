"""`Machine`: the replica, which has one daemon in processes of its own and passes requests on to it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import ray
from starlette.requests import Request
from starlette.responses import Response

from veltair.address import join_address, split_address
from veltair.api.daemon import Daemon
from veltair.errors import VeltairError
from veltair.ray.arguments import group_config, read_arguments
from veltair.ray.daemon_counts import DaemonCounts, read_counts
from veltair.ray.in_flight import InFlight
from veltair.ray.machine_load import LoadMeter
from veltair.ray.passage import (
    CallContext,
    EncodedMessage,
    GrpcAnswer,
    GrpcPassage,
    Headers,
    HttpAnswer,
    HttpPassage,
    Metadata,
    client_metadata,
)
from veltair.ray.servicer import STREAM_METHOD, UNARY_METHODS, leading_text
from veltair.ray.tenant_needs import tenant_needs
from veltair.server.engine.machine_limits import limit_machine

READY = "/v2/health/ready"
ANSWER_S = 2.0  # for the daemon, where this process asks
PARENT_S = 0.5  # between two looks at the parent
COUNTS_S = 1.0  # between two looks at its metrics
TENANT = "veltair-tenant"  # HTTP header and gRPC metadata, which names a tenant
REFUSED = {
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "INTERNAL",
}  # queries that ended so were not served


class Machine:
    """A replica of a group of tenants: it serves as long as its daemon does.

    The daemon is a child with a pipe as its stdin, so it drains and ends when this process is gone, however that ended;
    engine and workers end with it.
    """

    async def __init__(self, arguments: Mapping[str, Any], group: str) -> None:  # type: ignore[misc]  # Ray awaits it
        """Returns once the daemon is ready. Raises VeltairError with the node where it does not start."""
        self._daemon: Daemon | None = None
        self._node = ray.util.get_node_ip_address()
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's: one, or `num_cpus`; the daemon finds its cores by itself
        try:
            self._config = group_config(read_arguments(arguments), group)
            self._daemon = await asyncio.to_thread(Daemon, self._config)
            cores = len(limit_machine(self._config.server.cores).cores)
            self._flying = InFlight(cores, tenant_needs(self._config))
        except VeltairError as error:
            # This process ends now. Ray puts the traceback that it makes of it in `serve status`, all frames its own.
            sys.tracebacklimit = 0
            raise type(error)(f"node {self._node}: {error}") from None
        self._load = LoadMeter(cores)
        self._counts: DaemonCounts | None = None
        self._counted_s = 0.0
        self._grpc, self._http = GrpcPassage(self._daemon.grpc), HttpPassage(self._daemon.http)
        self._admin = HttpPassage(self._daemon.admin)
        self._following = asyncio.create_task(end_with_parent(os.getppid()))
        await self.check_health()

    # For Ray

    async def check_health(self) -> None:
        """Raises VeltairError unless the daemon says that it is ready."""
        if self._daemon is None or not self._daemon.running:
            raise VeltairError("the daemon has ended")
        try:
            status, _ = await self._http.page(READY, ANSWER_S)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise VeltairError(f"the daemon does not answer ({type(error).__name__})") from None
        if status != 200:
            raise VeltairError(f"the daemon is not ready (HTTP status {status})")

    async def record_routing_stats(self) -> dict[str, Any]:
        """What `DeadlineChoice` goes by."""
        report = self._flying.report(time.time_ns())
        if self._config.server.max_resident_bytes is None:
            return report
        counts = await self._read_counts()
        return report if counts is None else {**report, "resident": counts.resident}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `scale_by_slo` goes by; nothing where the daemon does not tell its metrics."""
        counts = await self._read_counts()
        return {} if counts is None else self._load.since_last(counts, time.monotonic())

    async def _read_counts(self) -> DaemonCounts | None:
        if time.monotonic() - self._counted_s >= COUNTS_S:
            self._counted_s = time.monotonic()
            try:
                status, page = await self._admin.page("/metrics", ANSWER_S)
                self._counts = read_counts(page) if status == 200 else None
            except (aiohttp.ClientError, TimeoutError):
                self._counts = None
        return self._counts

    def __del__(self) -> None:
        """Ray calls this once no request is left: what the daemon has accepted from elsewhere is answered too."""
        if self._daemon is not None:
            self._daemon.stop()

    # Requests of clients, from Ray's proxies

    async def __call__(self, request: Request) -> Response:
        """A request over HTTP."""
        target, headers = http_target(request), list(request.headers.items())
        tenant = self._queried(target.decode("latin-1"), request.headers.get(TENANT, ""))
        began_ns, status = self._begin(tenant), 500
        try:
            response = await self._http.forward(request.method, target, headers, await request.body())
            status = response.status_code
            return response
        finally:
            self._end(tenant, began_ns, served=status < 500)

    async def ModelStreamInfer(  # noqa: N802  the service's name
        self, requests: AsyncIterator[bytes], grpc_context: CallContext
    ) -> AsyncIterator[EncodedMessage]:
        """Queries one after the other on a stream, over gRPC."""
        async for message in self._grpc.stream(STREAM_METHOD, requests, grpc_context):
            yield message

    # The same from the application's entrance

    async def pass_call(self, request: bytes, method: str, metadata: Metadata) -> GrpcAnswer:
        """A call over gRPC."""
        tenant = None
        if method == "ModelInfer":
            named = next((str(value) for key, value in metadata if key == TENANT), "")
            tenant = self._flying.tenant_of(named or leading_text(request))
        began_ns, code = self._begin(tenant), "INTERNAL"
        try:
            answer = await self._grpc.call(method, request, metadata)
            code = answer.code
            return answer
        finally:
            self._end(tenant, began_ns, served=code not in REFUSED)

    async def pass_request(self, target: bytes, method: str, headers: Headers, body: bytes) -> HttpAnswer:
        """A request over HTTP."""
        named = next((value for name, value in headers if name.lower() == TENANT), "")
        tenant = self._queried(target.decode("latin-1"), named)
        began_ns, status = self._begin(tenant), 500
        try:
            answer = await self._http.ask(method, target, headers, body)
            status = answer.status
            return answer
        finally:
            self._end(tenant, began_ns, served=status < 500)

    async def where(self) -> dict[str, Any]:
        """Where this machine's daemon listens, for clients that go there themselves."""
        assert self._daemon is not None
        tenants = [tenant.name for tenant in self._config.tenants]
        listening = {key: self._seen_from_outside(getattr(self._daemon, key)) for key in ("http", "grpc")}
        return {"node": self._node, **listening, "tenants": tenants}

    def _seen_from_outside(self, address: str) -> str:
        host, port = split_address(address)
        host = self._node if host in ("0.0.0.0", "::") else host
        return join_address(host, port)

    # What is in flight

    def _queried(self, target: str, named: str) -> str | None:
        """The tenant of a query; None for what is none."""
        parts = target.partition("?")[0].split("/")
        if parts[1:3] != ["v2", "models"] or parts[-1] != "infer":
            return None
        return self._flying.tenant_of(named or parts[3])

    def _begin(self, tenant: str | None) -> int:
        if tenant is not None:
            self._flying.begin(tenant)
        return time.monotonic_ns()

    def _end(self, tenant: str | None, began_ns: int, *, served: bool) -> None:
        if tenant is not None:
            self._flying.end(tenant, time.monotonic_ns() - began_ns, served=served)


async def end_with_parent(parent: int) -> None:
    """End this process once `parent` is gone, which is the raylet: without it an actor may stay forever, of use to
    nobody, with a daemon that has the machine."""
    while os.getppid() == parent:
        await asyncio.sleep(PARENT_S)
    os._exit(1)


def http_target(request: Request) -> bytes:
    """Path and query as the client has written them."""
    path: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    query: bytes = request.scope.get("query_string", b"")
    return path + b"?" + query if query else path


def _unary(method: str) -> Callable[[Machine, bytes, CallContext], Awaitable[EncodedMessage]]:
    async def call(self: Machine, request: bytes, grpc_context: CallContext) -> EncodedMessage:
        return (await self.pass_call(request, method, client_metadata(grpc_context))).tell(grpc_context)

    call.__name__, call.__qualname__ = method, f"Machine.{method}"
    return call


for _method in UNARY_METHODS:
    setattr(Machine, _method, _unary(_method))
