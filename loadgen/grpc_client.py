"""Open Inference Protocol v2 over gRPC, as little of it as a load generator needs; infer requests pass as bytes.

It speaks HTTP/2 itself: grpcio's client takes three times the CPU time, which on this machine the server then lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any
from urllib.parse import unquote

import grpc
from tritonclient.grpc import service_pb2 as pb

from veltair.errors import ConfigError
from veltair.grpc.http2 import hpack
from veltair.grpc.http2.connection import Connection
from veltair.grpc.http2.frames import CANCEL, DATA, HEADERS, REFUSED_STREAM, prefix
from veltair.grpc.http2.hpack import Field
from veltair.grpc.http2.stream import Stream
from veltair.loadgen.client import Answer, ModelMeta, Outcome, Payload, PlacedTensor, TensorMeta
from veltair.loadgen.model_config import model_meta
from veltair.loadgen.payloads import raw

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
LONGEST_ERROR = 300  # characters of an error that are kept
LARGEST_BYTES = (1 << 31) - 1  # of an answer: protobuf has none larger
REFUSALS = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
_STATUSES = {str(status.value[0]): status.name for status in grpc.StatusCode}


class _LostError(Exception):
    """No answer of the server: the connection, or what came over it, is broken."""


class _UntouchedError(_LostError):
    """The server has not looked at the call: it may be made again (RFC 9113, 8.7)."""


class _RefusedError(Exception):
    """The server's word."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class _Call(Stream):
    """A unary call; `answer` is what it comes to."""

    def __init__(self) -> None:
        super().__init__(LARGEST_BYTES)
        self.answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._data = memoryview(b"")
        self._fields: dict[str, str] = {}

    def headers(self, fields: list[Field]) -> None:
        self._fields.update(fields)

    def message(self, data: memoryview, *, compressed: bool) -> None:
        self._data = data

    def too_large(self, size: int) -> None:
        self._lost(f"an answer of {size} bytes was announced")
        self.reset(CANCEL)

    def ended(self) -> None:
        status = _STATUSES.get(self._fields.get("grpc-status", ""))
        if self.answer.done():
            return
        if status == "OK":
            self.answer.set_result(self._data)
        elif status is None:
            self._lost(f"HTTP status {self._fields.get(':status')}, no status of gRPC")
        else:
            text = unquote(self._fields.get("grpc-message", ""))
            self.answer.set_exception(_RefusedError(status, " ".join(text.split())))

    def broken(self, code: int | None) -> None:
        what = "the connection was lost" if code is None else f"the call was reset with code {code}"
        self._lost(what, _UntouchedError if code == REFUSED_STREAM else _LostError)

    def _lost(self, what: str, kind: type[_LostError] = _LostError) -> None:
        if not self.answer.done():
            self.answer.set_exception(kind(what))


class _ToServer(Connection):
    def __init__(self) -> None:
        super().__init__()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def agreed(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("it speaks no HTTP/2"))
        while self._waiting:
            self._next()

    def drop(self, stream: Stream) -> None:
        super().drop(stream)
        self._next()

    async def call(self, head: bytes, request: bytes) -> memoryview:
        """Raises _RefusedError, _LostError."""
        while True:
            while len(self.streams) >= self.most_streams:
                await self._turn()
            alone = not self.streams
            try:
                return await self._call(head, request)
            except _UntouchedError:  # a server counts a call as open for a moment after its end has gone out
                if alone:
                    raise
                if self.streams:
                    await self._turn()

    async def _call(self, head: bytes, request: bytes) -> memoryview:
        """Raises _RefusedError, _LostError."""
        call = _Call()
        self.begin(call)
        call.queue(HEADERS, head)
        call.send(DATA, request, end=True)
        try:
            return await call.answer
        finally:
            call.reset(CANCEL)  # nothing where it has ended

    async def _turn(self) -> None:
        """Wait until a call has ended. Raises _LostError."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn
        if self.leaving:
            raise _LostError("the server takes no more calls on this connection")

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its caller has given up
                turn.set_result(None)
                return


class _Line:
    """A connection, made anew when it was lost."""

    def __init__(self, host: str, port: int) -> None:
        self._where = (host, port)
        self._connection: _ToServer | None = None
        self._making = asyncio.Lock()

    async def connection(self) -> _ToServer:
        """Raises OSError."""
        if self._connection is None or self._connection.leaving:
            async with self._making:
                if self._connection is None or self._connection.leaving:
                    _, made = await asyncio.get_running_loop().create_connection(_ToServer, *self._where)
                    await made.ready
                    self._connection = made
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.transport.close()


class GrpcClient:
    """`connections` of them, taken in turn."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._host, self._port = host, port
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._timeout_s = timeout_s
        self._lines: list[_Line] = []
        self._turn = 0
        self._infer_head = self._head("ModelInfer")

    async def open(self, connections: int) -> None:
        """Raises ConfigError when nobody listens."""
        self._lines = [_Line(self._host, self._port) for _ in range(connections)]
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.gather(*(line.connection() for line in self._lines))
        except (TimeoutError, OSError):
            await self.close()
            raise ConfigError(f"load.target: cannot reach grpc://{self._address}") from None

    async def close(self) -> None:
        for line in self._lines:
            line.close()

    async def describe(self, model: str) -> ModelMeta:
        try:
            meta = await self._ask("ModelMetadata", pb.ModelMetadataRequest(name=model), pb.ModelMetadataResponse)
        except (_RefusedError, _LostError, OSError) as error:
            raise ConfigError(f"model `{model}`: the server answered {error}") from None
        try:
            reply = await self._ask("ModelConfig", pb.ModelConfigRequest(name=model), pb.ModelConfigResponse)
            parameters = {key: entry.string_value for key, entry in reply.config.parameters.items()}
        except _RefusedError:  # a server without config
            parameters = {}
        return model_meta(model, [TensorMeta(i.name, i.datatype, tuple(i.shape)) for i in meta.inputs], parameters)

    async def register(self, region: str, key: str, size_bytes: int) -> None:
        asked = pb.SystemSharedMemoryRegisterRequest(name=region, key=key, byte_size=size_bytes)
        try:
            await self._ask("SystemSharedMemoryRegister", asked, pb.SystemSharedMemoryRegisterResponse)
        except (_RefusedError, _LostError, OSError) as error:
            raise ConfigError(f"load.shared_memory: the server answered {error}") from None

    async def unregister(self, region: str) -> None:
        asked = pb.SystemSharedMemoryUnregisterRequest(name=region)
        with contextlib.suppress(_RefusedError, _LostError, OSError):
            await self._ask("SystemSharedMemoryUnregister", asked, pb.SystemSharedMemoryUnregisterResponse)

    def encode(self, meta: ModelMeta, payload: Payload) -> bytes:
        request = pb.ModelInferRequest(model_name=meta.name)
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
        return prefix(len(data)) + data

    async def send(self, request: bytes) -> Answer:
        self._turn = (self._turn + 1) % len(self._lines)
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._lines[self._turn].connection()
                await connection.call(self._infer_head, request)
        except TimeoutError:
            return Answer(Outcome.ERROR, f"no answer within {self._timeout_s:g} s")
        except _RefusedError as error:
            return Answer(Outcome.REFUSED if error.status in REFUSALS else Outcome.ERROR, str(error)[:LONGEST_ERROR])
        except (_LostError, OSError) as error:
            return Answer(Outcome.ERROR, str(error)[:LONGEST_ERROR])
        return Answer(Outcome.OK)

    async def _ask(self, method: str, request: Any, answer: Any) -> Any:
        """Raises _RefusedError, _LostError, OSError (of which TimeoutError is one)."""
        data = request.SerializeToString()
        async with asyncio.timeout(self._timeout_s):
            connection = await self._lines[0].connection()
            return answer.FromString(bytes(await connection.call(self._head(method), prefix(len(data)) + data)))

    def _head(self, method: str) -> bytes:
        return hpack.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{SERVICE}/{method}"),
                (":authority", self._address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            ]
        )
