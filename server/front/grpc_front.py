# ruff: noqa: N802 (method names are the protocol's)
"""The gRPC front: Open Inference Protocol v2 with the messages that tritonclient ships."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from google.protobuf import json_format
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as pb_grpc

from veltair.address import join_address, split_address
from veltair.errors import (
    ConfigError,
    QueryError,
    RefusedError,
    RequestError,
    UnknownModelError,
    UnsupportedError,
    quoted,
)
from veltair.grpc.ordered_stream import answer_in_order
from veltair.grpc.server import Server, methods_by_path
from veltair.grpc.server_call import Method
from veltair.server.access.callers import Access
from veltair.server.access.grpc_access import with_access
from veltair.server.front.inference_service import TENANT_HEADER, InferenceService
from veltair.server.front.plan_learner import PlanLearner
from veltair.server.front.query_result import wants_trace
from veltair.server.front.shared_memory_regions import CudaRegions
from veltair.server.ipc.stages import server_timing
from veltair.server.protocol.grpc_codec import GrpcRequest, decode_request, encode_response, parse_request, read_names
from veltair.server.protocol.health_checks import HealthChecks
from veltair.server.protocol.repository_request import check_control, check_repository
from veltair.server.protocol.request_bounds import only_value
from veltair.server.repository.model_control import ModelControl
from veltair.server.wire.io_threads import IoThreads

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
STREAM_DEPTH = 32  # requests of one stream in flight; further ones are read when a response was sent
MESSAGE_SLACK_BYTES = 1 << 20  # names and framing, on top of the tensors that the body limit bounds
FINAL_RESPONSE = "triton_final_response"  # marks the last response to a request, if the client wants that
_REFLECTION_V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
_WANTS_FINAL_MARK = "triton_enable_empty_final_response"

_log = logging.getLogger(__name__)


class InferenceServicer(pb_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The methods of the inference service, by their names in the protocol.

    ::

        descriptor = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
        methods = methods_by_path(descriptor, InferenceServicer(service), {"ModelInferRequest": parse_request})
    """

    def __init__(self, service: InferenceService, learner: PlanLearner | None = None) -> None:
        """`learner` writes down what requests become, where I/O threads can follow it."""
        self._service = service
        self._learner = learner

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=self._service.engine.ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        try:
            self._service.resolve(request.name, request.version)
        except UnknownModelError:  # as Triton says it: clients ask until a model is there
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._service.engine.ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return pb.ServerMetadataResponse(**self._service.server_metadata())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        return pb.ModelMetadataResponse(**self._service.model_metadata(request.name, request.version))

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        config = self._service.model_configuration(request.name, request.version)
        return json_format.ParseDict({"config": config}, pb.ModelConfigResponse())

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        statistics = await self._service.statistics(request.name, request.version)
        return json_format.ParseDict(statistics, pb.ModelStatisticsResponse())

    async def ModelInfer(self, grpc_request: GrpcRequest, context: Any) -> Any:
        response, stage_ns = await self._infer(grpc_request, context)
        context.set_trailing_metadata((("server-timing", server_timing(stage_ns)),))
        return response

    async def _infer(self, grpc_request: GrpcRequest, context: Any) -> tuple[Any, Sequence[int]]:
        """The response, and how long each of STAGES took."""
        arrival_ns = time.monotonic_ns()
        learner = self._learner
        try:
            if grpc_request.message is None:
                raw = await self._service.parser.with_raw_contents(grpc_request.data)
                grpc_request, learner = parse_request(memoryview(raw), len(raw)), None
            message = grpc_request.message
            request = decode_request(grpc_request)
            tenant = only_value(_metadata(context, TENANT_HEADER), TENANT_HEADER)
        except RequestError as error:
            self._service.metrics.count_unread(error)
            raise
        left_s = context.time_remaining()
        traces = self._service.traces
        inferred = await self._service.infer(
            message.model_name,
            message.model_version,
            request,
            arrival_ns=arrival_ns,
            tenant=tenant,
            deadline_ns=None if left_s is None else arrival_ns + int(left_s * 1e9),
            trace=None if traces is None else traces.begin(*_trace_fields(context), "grpc"),
        )
        named = message.model_name, inferred.served.version, request.id
        response = encode_response(*named, inferred.outputs, inferred.parameters, inferred.stored)
        if request.parameters.get(_WANTS_FINAL_MARK) is True:
            response.parameters[FINAL_RESPONSE].bool_param = True
        if learner is not None and not wants_trace(request.parameters):
            learner.learn_grpc(grpc_request, tenant, request, inferred.served, response)
        self._service.encoded(inferred)
        return response, inferred.stage_ns

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Requests run concurrently; responses are sent in the order of the requests. An error is a response."""
        async with aclosing(
            answer_in_order(requests, lambda message: self._stream_response(message, context), STREAM_DEPTH)
        ) as answers:
            async for response in answers:
                yield response

    async def _stream_response(self, grpc_request: GrpcRequest, context: Any) -> Any:
        try:
            response, _ = await self._infer(grpc_request, context)  # a stream has one end for all its responses
            return pb.ModelStreamInferResponse(infer_response=response)
        except (RequestError, QueryError) as error:
            text = str(error)
        except Exception:
            _log.exception("ModelStreamInfer failed")
            text = "internal error"
        named = pb.ModelInferResponse(**read_names(grpc_request.data))
        return pb.ModelStreamInferResponse(error_message=text, infer_response=named)

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:
        self._service.regions.register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:
        self._service.regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:
        status = pb.SystemSharedMemoryStatusResponse.RegionStatus
        regions = {each.name: status(**each.description()) for each in self._service.regions.list_regions(request.name)}
        return pb.SystemSharedMemoryStatusResponse(regions=regions)

    async def CudaSharedMemoryUnregister(self, request: Any, context: Any) -> Any:
        CudaRegions(self._service.regions).unregister(request.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(self, request: Any, context: Any) -> Any:
        CudaRegions(self._service.regions).list_regions(request.name)
        return pb.CudaSharedMemoryStatusResponse()

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        check_repository(request.repository_name)
        rows = self._service.repository_index(ready_alone=request.ready)
        return pb.RepositoryIndexResponse(models=[pb.RepositoryIndexResponse.ModelIndex(**row) for row in rows])

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        await self._control(request, "loaded").load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        await self._control(request, "unloaded").unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    def _control(self, request: Any, change: str) -> ModelControl:
        """What carries out a change that the request may ask for. Raises UnsupportedError."""
        what = f"{quoted(request.model_name)} is not {change}"
        control = self._service.require_control(what)
        check_control(request.parameters, request.repository_name, what)
        return control


async def _unsupported(self: InferenceServicer, request: Any, context: Any) -> None:
    raise UnsupportedError("not supported: no CUDA memory, trace or logging control")


for _method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
    if _method.name not in InferenceServicer.__dict__:
        setattr(InferenceServicer, _method.name, _unsupported)


def _trace_fields(context: Any) -> tuple[list[str], list[str]]:
    return _metadata(context, "traceparent"), _metadata(context, "tracestate")


def _metadata(context: Any, key: str) -> list[str]:
    return [value for name, value in context.invocation_metadata() or () if name == key and isinstance(value, str)]


def _unpack(
    service: InferenceService, loop: asyncio.AbstractEventLoop, body: bytes, coding: str, limit_bytes: int
) -> memoryview:
    """A compressed message, in a thread that may take its time. Raises RequestError, RefusedError."""
    try:
        return service.unpacker.unpack(body, coding, limit_bytes)
    except (RequestError, RefusedError) as error:
        loop.call_soon_threadsafe(service.metrics.count_unread, error)
        raise


class GrpcFront:
    """The listening server; `address` is what it is bound to.

    ::

        front = await GrpcFront.start(service, "127.0.0.1:0")
        front.report_draining()  # health checks fail from here on
        await front.stop(grace_s=2.0)
    """

    def __init__(self, server: Server | IoThreads, address: str, checks: HealthChecks) -> None:
        self._server = server
        self.address = address
        self._checks = checks

    @classmethod
    async def start(
        cls,
        service: InferenceService,
        address: str,
        learner: PlanLearner | None = None,
        access: Access | None = None,
        *,
        apart: bool = False,
    ) -> GrpcFront:
        """Raises ConfigError when it cannot listen there.

        With a `learner` its I/O threads read and write, without one Python does. `apart`: administration has an address
        of its own.
        """

        def names() -> set[str]:
            tenants = service.engine.models.tenants
            return {"", SERVICE, *tenants, *(tenant.manifest.model for tenant in tenants.values())}

        checks = HealthChecks(lambda: service.engine.ready, names)
        reflector = reflection.aio.ReflectionServicer((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME))
        services = ((pb, InferenceServicer(service, learner)), (health_pb2, checks), (reflection_pb2, reflector))
        methods: dict[str, Method] = {}
        for module, servicer in services:
            for descriptor in module.DESCRIPTOR.services_by_name.values():
                methods |= methods_by_path(descriptor, servicer, {"ModelInferRequest": parse_request})
        methods[_REFLECTION_V1] = methods[_REFLECTION_V1.replace("v1", "v1alpha")]  # the same messages
        unpack = partial(_unpack, service, asyncio.get_running_loop())
        methods = with_access(methods, access or Access(), apart=apart)
        host, port = split_address(address)
        server: Server | IoThreads
        try:
            if learner is None:
                server = Server(methods, service.body_limit_bytes + MESSAGE_SLACK_BYTES, unpack)
                port = await server.start(host, port)
            else:
                server = learner.threads
                server.on_failed = service.metrics.log_failed
                port = await server.listen(host, port, methods, unpack, service.metrics.count_ended)
        except OSError:
            raise ConfigError(f"server.grpc: cannot listen on {address}") from None
        return cls(server, join_address(host, port), checks)

    def report_draining(self) -> None:
        """Report to health watchers that the server is shutting down."""
        self._checks.end()

    async def stop(self, grace_s: float) -> None:
        self._checks.end()
        await self._server.stop(grace_s)
