"""Open Inference Protocol v2 over gRPC; infer requests and answers pass as bytes, untouched."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import NamedTuple

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from veltair.errors import ConfigError
from veltair.loadgen.contract import Answer, ModelMeta, Outcome, Payload, PlacedTensor, TensorMeta
from veltair.loadgen.model_config import model_meta
from veltair.loadgen.payloads import raw

INFER = "/inference.GRPCInferenceService/ModelInfer"
LONGEST_ERROR = 300  # characters of an error that are kept
REFUSALS = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
# How the library words the UNAVAILABLE that it makes up itself when a connection cannot be had or breaks.
BROKEN = ("failed to connect", "Stream removed", "Cancelling all calls", "DNS resolution failed")


class _Infer(NamedTuple):
    channel: grpc.aio.Channel
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class GrpcClient:
    """`connections` channels, each with a connection of its own, taken in turn."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._timeout_s = timeout_s
        self._channels: list[grpc.aio.Channel] = []

    async def open(self, connections: int) -> None:
        """Raises ConfigError when nobody listens."""
        options = [
            ("grpc.use_local_subchannel_pool", 1),  # else all channels share one connection
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        self._channels = [grpc.aio.insecure_channel(self._address, options) for _ in range(connections)]
        self._calls = itertools.cycle([_Infer(c, c.unary_unary(INFER)) for c in self._channels])
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.gather(*map(_connected, self._channels))
        except (TimeoutError, ConnectionError):
            await self.close()
            raise ConfigError(f"load.target: cannot reach grpc://{self._address}") from None

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def describe(self, model: str) -> ModelMeta:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channels[0])
        try:
            meta = await stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=model), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise ConfigError(f"model `{model}`: the server answered {_error_text(error)}") from None
        try:
            reply = await stub.ModelConfig(service_pb2.ModelConfigRequest(name=model), timeout=self._timeout_s)
            parameters = {key: entry.string_value for key, entry in reply.config.parameters.items()}
        except grpc.aio.AioRpcError:  # a server without config
            parameters = {}
        return model_meta(model, [TensorMeta(i.name, i.datatype, tuple(i.shape)) for i in meta.inputs], parameters)

    async def register(self, region: str, key: str, size_bytes: int) -> None:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channels[0])
        asked = service_pb2.SystemSharedMemoryRegisterRequest(name=region, key=key, byte_size=size_bytes)
        try:
            await stub.SystemSharedMemoryRegister(asked, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise ConfigError(f"load.shared_memory: the server answered {_error_text(error)}") from None

    async def unregister(self, region: str) -> None:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channels[0])
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stub.SystemSharedMemoryUnregister(
                service_pb2.SystemSharedMemoryUnregisterRequest(name=region), timeout=self._timeout_s
            )

    def encode(self, meta: ModelMeta, payload: Payload) -> bytes:
        request = service_pb2.ModelInferRequest(model_name=meta.name)
        for spec in meta.inputs:
            values = payload[spec.name]
            entry = request.inputs.add(name=spec.name, datatype=spec.datatype, shape=values.shape)
            if isinstance(values, PlacedTensor):
                for key, value in values.parameters.items():
                    if isinstance(value, str):
                        entry.parameters[key].string_param = value
                    else:
                        entry.parameters[key].int64_param = value
            else:
                request.raw_input_contents.append(raw(values))
        data: bytes = request.SerializeToString()
        return data

    async def send(self, request: bytes) -> Answer:
        infer = next(self._calls)
        try:
            # Not the call's own timeout: its DEADLINE_EXCEEDED could not be told from a refusal of the server.
            async with asyncio.timeout(self._timeout_s):
                await infer.call(request)
        except TimeoutError:
            return Answer(Outcome.ERROR, f"no answer within {self._timeout_s:g} s")
        except grpc.aio.AioRpcError as error:
            refused = error.code() in REFUSALS and not _is_broken(infer.channel, error)
            return Answer(Outcome.REFUSED if refused else Outcome.ERROR, _error_text(error))
        return Answer(Outcome.OK)


async def _connected(channel: grpc.aio.Channel) -> None:
    """Raises ConnectionError at the first failed attempt; the library itself would try for ever."""
    state = channel.get_state(try_to_connect=True)
    while state != grpc.ChannelConnectivity.READY:
        if state == grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            raise ConnectionError
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


def _is_broken(channel: grpc.aio.Channel, error: grpc.aio.AioRpcError) -> bool:
    """Whether the connection failed, where UNAVAILABLE alone could as well be the server's word."""
    if error.code() != grpc.StatusCode.UNAVAILABLE:
        return False
    ready = channel.get_state() == grpc.ChannelConnectivity.READY
    return not ready or (error.details() or "").startswith(BROKEN)


def _error_text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name} {' '.join((error.details() or '').split())}"[:LONGEST_ERROR]
