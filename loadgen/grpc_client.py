"""A client of the Open Inference Protocol v2 over gRPC, with the calls that a load generator needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from veltair.address import join_address
from veltair.errors import ConfigError
from veltair.grpc.client import CallLostError, GrpcChannel, StatusError, encode_request_head
from veltair.grpc.http2.frames import message_prefix
from veltair.loadgen.client import (
    CallSettings,
    ModelMetadata,
    Outcome,
    Payload,
    Response,
    SharedTensor,
    TensorMetadata,
)
from veltair.loadgen.model_config import build_metadata
from veltair.loadgen.payloads import encode_tensor

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
MAX_ERROR = 300  # characters of an error that are kept
REFUSALS = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")


class GrpcClient:
    """Sends infer requests over several connections in turn, each tenant's over its own.

    ::

        client = GrpcClient("127.0.0.1", 8001, timeout_s=5)
        await client.open(connections=8)
        meta = await client.describe("resnet50")
        response = await client.send(client.encode(meta, payload))
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host, self._port = host, port
        self._address = join_address(host, port)
        self._timeout_s = timeout_s
        self._connections = 1
        self._turns: dict[int, Iterator[GrpcChannel]] = {}  # by tenant
        self._channels: list[GrpcChannel] = []  # of all tenants; the first one is for all but queries, too
        self._peer = host, port
        self._infer_head = self._request_head("ModelInfer")

    async def open(self, connections: int) -> None:
        """Make the connections of the first tenant; those of others come with their first query. Raises ConfigError
        when nobody listens."""
        self._connections = connections
        self._add_tenant(0)
        try:
            async with asyncio.timeout(self._timeout_s):
                opened = await asyncio.gather(*(channel.connect() for channel in self._channels))
        except (TimeoutError, OSError):
            await self.close()
            raise ConfigError(f"load.target: cannot reach grpc://{self._address}") from None
        self._peer = opened[0].peer

    @property
    def call_settings(self) -> CallSettings:
        return CallSettings("grpc", *self._peer, self._connections, self._timeout_s, self._infer_head)

    def _add_tenant(self, tenant: int) -> None:
        channels = [GrpcChannel(self._host, self._port) for _ in range(self._connections)]
        self._channels += channels
        self._turns[tenant] = cycle(channels)

    async def close(self) -> None:
        for channel in self._channels:
            channel.close()

    async def describe(self, model: str) -> ModelMetadata:
        try:
            meta = await self._call("ModelMetadata", pb.ModelMetadataRequest(name=model), pb.ModelMetadataResponse)
        except (StatusError, CallLostError, OSError) as error:
            raise ConfigError(f"model `{model}`: the server answered {error}") from None
        try:
            reply = await self._call("ModelConfig", pb.ModelConfigRequest(name=model), pb.ModelConfigResponse)
            parameters = {key: entry.string_value for key, entry in reply.config.parameters.items()}
        except StatusError:  # a server without config
            parameters = {}
        return build_metadata(
            model, [TensorMetadata(i.name, i.datatype, tuple(i.shape)) for i in meta.inputs], parameters
        )

    async def register(self, region: str, key: str, size_bytes: int) -> None:
        request = pb.SystemSharedMemoryRegisterRequest(name=region, key=key, byte_size=size_bytes)
        try:
            await self._call("SystemSharedMemoryRegister", request, pb.SystemSharedMemoryRegisterResponse)
        except (StatusError, CallLostError, OSError) as error:
            raise ConfigError(f"load.shared_memory: the server answered {error}") from None

    async def unregister(self, region: str) -> None:
        request = pb.SystemSharedMemoryUnregisterRequest(name=region)
        with contextlib.suppress(StatusError, CallLostError, OSError):
            await self._call("SystemSharedMemoryUnregister", request, pb.SystemSharedMemoryUnregisterResponse)

    def encode(self, meta: ModelMetadata, payload: Payload) -> bytes:
        request = pb.ModelInferRequest(model_name=meta.name)
        for spec in meta.inputs:
            values = payload[spec.name]
            entry = request.inputs.add(name=spec.name, datatype=spec.datatype, shape=values.shape)
            if isinstance(values, SharedTensor):
                for key, value in values.parameters.items():
                    if isinstance(value, str):
                        entry.parameters[key].string_param = value
                    else:
                        entry.parameters[key].int64_param = value
            else:
                request.raw_input_contents.append(encode_tensor(values))
        data: bytes = request.SerializeToString()
        return message_prefix(len(data)) + data

    async def send(self, request: bytes, tenant: int = 0) -> Response:
        if tenant not in self._turns:
            self._add_tenant(tenant)
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await next(self._turns[tenant]).connect()
                await connection.call(self._infer_head, request)
        except TimeoutError:
            return Response(Outcome.ERROR, f"no answer within {self._timeout_s:g} s")
        except StatusError as error:
            return Response(Outcome.REFUSED if error.status in REFUSALS else Outcome.ERROR, str(error)[:MAX_ERROR])
        except (CallLostError, OSError) as error:
            return Response(Outcome.ERROR, str(error)[:MAX_ERROR])
        return Response(Outcome.OK)

    async def _call(self, method: str, request: Any, response: Any) -> Any:
        """Raises StatusError, CallLostError, OSError (of which TimeoutError is one)."""
        data = request.SerializeToString()
        async with asyncio.timeout(self._timeout_s):
            connection = await self._channels[0].connect()
            head = self._request_head(method)
            return response.FromString(bytes(await connection.call(head, message_prefix(len(data)) + data)))

    def _request_head(self, method: str) -> bytes:
        return encode_request_head(self._address, f"/{SERVICE}/{method}")
