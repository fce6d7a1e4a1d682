"""`Entrance`: what stands before the machines of several groups of tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from tritonclient.grpc import service_pb2

from veltair.grpc.ordered_stream import answer_in_order
from veltair.ray.machine import TENANT, http_target
from veltair.ray.passage import GONE, CallContext, EncodedMessage, GrpcAnswer, HttpAnswer, client_metadata, unavailable
from veltair.ray.servicer import UNARY_METHODS, leading_text
from veltair.server.protocol.grpc_codec import read_names

# Questions about all tenants: every group is asked.
ALL_LIVE, ALL_LISTED = {"ServerLive", "ServerReady"}, {"RepositoryIndex", "ModelStatistics"}
LISTED_PATHS = {"/v2/repository/index": None, "/v2/models/stats": "model_stats"}  # the key of the list, if it has one
HEALTH_PATHS = "/v2/health/"
_DIED = RayActorError, DeploymentUnavailableError  # a query's machine, with what it held
STREAM_DEPTH = 32  # requests of one stream at the same time, as at a daemon


class Entrance:
    """Sends each request on to the group whose tenant it names, and asks all groups what is about all of them.

    Clients name tenants, not their models. What names no tenant goes to the first group, which says what is wrong.
    """

    def __init__(self, machines: dict[str, DeploymentHandle], homes: Mapping[str, str]) -> None:
        """`homes`: the group of each tenant."""
        self._machines, self._homes = machines, homes
        self._first = next(iter(machines))

    async def __call__(self, request: Request) -> Response:
        """A request over HTTP."""
        target, path = http_target(request), request.url.path
        passed = (target, request.method, list(request.headers.items()), await request.body())
        if path in LISTED_PATHS or path.startswith(HEALTH_PATHS):
            answers = [HttpAnswer(*each) for each in await self._of_all("pass_request", *passed)]
            return _joined(path, answers).response()
        parts = path.split("/")
        named = request.headers.get(TENANT) or (parts[3] if parts[1:3] == ["v2", "models"] and len(parts) > 3 else "")
        try:
            return HttpAnswer(*await self._handle(named).pass_request.remote(*passed)).response()
        except _DIED:
            return unavailable().response()

    async def ModelStreamInfer(  # noqa: N802  the service's name
        self, requests: AsyncIterator[bytes], grpc_context: CallContext
    ) -> AsyncIterator[EncodedMessage]:
        """Queries run side by side, each at its own group; their answers come in the order of the queries."""

        async def ask(request: bytes) -> EncodedMessage:
            try:
                answer = await self.pass_call(request, "ModelInfer", grpc_context)
            except RayServeException as error:  # costs this query alone
                answer = GrpcAnswer("RESOURCE_EXHAUSTED", str(error), b"")
            return EncodedMessage(_streamed(request, answer))

        async with aclosing(answer_in_order(requests, ask, STREAM_DEPTH)) as answers:
            async for message in answers:
                yield message

    async def pass_call(self, request: bytes, method: str, context: CallContext) -> GrpcAnswer:
        """A call over gRPC."""
        metadata = client_metadata(context)
        name = leading_text(request)
        if method in ALL_LIVE or (method in ALL_LISTED and not (name and method == "ModelStatistics")):
            answers = [GrpcAnswer(*each) for each in await self._of_all("pass_call", request, method, metadata)]
            failed = next((answer for answer in answers if answer.code != "OK"), None)
            # Messages of a list, one behind the other, are a message with the whole list; false is an empty message.
            whole = b"".join(answer.message for answer in answers)
            alive = answers[0].message if all(answer.message for answer in answers) else b""
            return failed or GrpcAnswer("OK", "", alive if method in ALL_LIVE else whole)
        named = next((str(value) for key, value in metadata if key == TENANT), name)
        try:
            return GrpcAnswer(*await self._handle(named).pass_call.remote(request, method, metadata))
        except _DIED:
            return GrpcAnswer("UNAVAILABLE", GONE, b"")

    def _handle(self, tenant: str) -> DeploymentHandle:
        return self._machines[self._homes.get(tenant, self._first)]

    async def _of_all(self, method: str, *arguments: Any) -> list[Any]:
        """One machine of each group is asked."""
        asked = (getattr(handle, method).remote(*arguments) for handle in self._machines.values())
        return await asyncio.gather(*asked)


def _joined(path: str, answers: list[HttpAnswer]) -> HttpAnswer:
    """One answer about all groups: the first that is an error, or all lists in one."""
    failed = next((answer for answer in answers if answer.status != 200), None)
    if failed is not None or path not in LISTED_PATHS:
        return failed or answers[0]
    key = LISTED_PATHS[path]
    contents = [msgspec.json.decode(answer.body) for answer in answers]
    rows = [row for content in contents for row in (content if key is None else content[key])]
    body = msgspec.json.encode(rows if key is None else {key: rows})
    return HttpAnswer(200, [("Content-Type", "application/json")], body)


def _streamed(request: bytes, answer: GrpcAnswer) -> bytes:
    """A message of `ModelStreamInfer`, in which an error is a text beside the request's names."""
    if answer.code != "OK":
        named = service_pb2.ModelInferResponse(**read_names(memoryview(request)))
        failed = service_pb2.ModelStreamInferResponse(error_message=answer.details, infer_response=named)
        text: bytes = failed.SerializeToString()
        return text
    response = service_pb2.ModelInferResponse.FromString(answer.message)
    whole: bytes = service_pb2.ModelStreamInferResponse(infer_response=response).SerializeToString()
    return whole


def _unary(method: str) -> Callable[[Entrance, bytes, CallContext], Awaitable[EncodedMessage]]:
    async def call(self: Entrance, request: bytes, grpc_context: CallContext) -> EncodedMessage:
        return (await self.pass_call(request, method, grpc_context)).tell(grpc_context)

    call.__name__, call.__qualname__ = method, f"Entrance.{method}"
    return call


for _method in UNARY_METHODS:
    setattr(Entrance, _method, _unary(_method))
