"""Both gRPC fronts in this process over one service: Python's, and the native one with a scripted engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import grpc
import numpy as np
import uvloop
from google.protobuf.json_format import ParseDict
from in_process_front import LIMIT, MANIFEST, NumpyEngine, served
from msgspec.structs import replace
from scripted_engine import EXECUTE_NS, QUEUE_NS, WORDS, ScriptedEngine, lengths
from tritonclient.grpc import service_pb2 as pb
from wire_frames import frame

from veltair.access_config import ClientConfig
from veltair.config import LimitsConfig
from veltair.grpc.http2 import frames
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.server.access.callers import Access
from veltair.server.front.grpc_front import MESSAGE_SLACK_BYTES, GrpcFront
from veltair.server.front.inference_service import TENANT_HEADER, InferenceService
from veltair.server.front.metrics import Metrics
from veltair.server.front.plan_learner import PlanLearner
from veltair.server.front.query_result import QueryResult
from veltair.server.ipc.stages import EngineStamps
from veltair.server.ipc.tenant_share import TenantShare
from veltair.server.repository.served_tenant import ServedTenant
from veltair.server.wire.io_threads import IoThreads
from veltair.server.wire.plan import SlotViews
from veltair.types import QoSTarget

LIMITS = LimitsConfig()
SLOTS = 4
WAIT_S = 60.0  # a test that takes so long has failed, also on a busy machine
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass
class LinkedNumpyEngine(NumpyEngine):
    """Serves what Python handles, and knows where the slots of a scripted engine lie."""

    scripted: ScriptedEngine | None = None

    async def infer(self, tenant: ServedTenant, inputs: Any, **options: Any) -> QueryResult:
        if tenant.name != "words":
            return await super().infer(tenant, inputs, **options)
        batch = len(inputs["more"])
        InputLayout.of(WORDS).fill([np.zeros(p.at(batch), p.dtype) for p in WORDS.input_tensors], inputs, batch)
        self.deadlines.append(None)
        outputs = {"bytes": inputs["more"] + lengths(inputs["text"])}
        now_ns = time.monotonic_ns()
        stamps = EngineStamps(now_ns, now_ns + QUEUE_NS, now_ns + QUEUE_NS + EXECUTE_NS, now_ns + QUEUE_NS + EXECUTE_NS)
        return QueryResult(outputs, QUEUE_NS, EXECUTE_NS, now_ns, stamps)

    def slot_views(self, served: ServedTenant, batch: int) -> tuple[int, SlotViews] | None:
        if self.scripted is None:
            return None
        pool, index = self.scripted.pool, list(self.tenants).index(served.name)
        address = pool.address(index)
        return index, SlotViews(address, pool.inputs(index, 0, batch), pool.outputs(index, 0, batch))


class Answer(NamedTuple):
    """What a client gets."""

    code: grpc.StatusCode
    details: str
    data: bytes = b""

    @property
    def message(self) -> Any:
        assert self.code is grpc.StatusCode.OK, self
        return pb.ModelInferResponse.FromString(self.data)

    def sums(self) -> tuple[list[float], list[int]]:
        x, ids = self.message.raw_output_contents
        return np.frombuffer(x, np.float32).tolist(), np.frombuffer(ids, np.int64).tolist()


async def ask(channel: Any, data: bytes, *, path: str = INFER, **options: Any) -> Answer:
    """One request, as raw bytes."""
    try:
        return Answer(grpc.StatusCode.OK, "", await channel.unary_unary(path)(data, **options))
    except grpc.aio.AioRpcError as error:
        return Answer(error.code(), error.details() or "")


@dataclass
class Fronts:
    """The native front and the Python front over the same service."""

    threads: IoThreads
    engine: LinkedNumpyEngine
    service: InferenceService
    access: Access
    native: GrpcFront
    python: GrpcFront
    channels: list[Any] = field(default_factory=list)

    @property
    def scripted(self) -> ScriptedEngine:
        assert self.engine.scripted is not None
        return self.engine.scripted

    async def connect(self, *, python: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, which has sent the client's preface and settings."""
        host, _, port = (self.python if python else self.native).address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(frames.PREFACE + frame(frames.SETTINGS, 0, 0))
        return reader, writer

    def channel(self, *, python: bool = False) -> Any:
        """A connection of its own."""
        address = self.python.address if python else self.native.address
        channel = grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.channels.append(channel)
        return channel

    @property
    def asked_python(self) -> int:
        """How many queries Python has handed to its engine."""
        return len(self.engine.deadlines)

    async def learn(self, channel: Any, data: bytes, **options: Any) -> Answer:
        """Ask Python for the first time, so that there is a plan for the next."""
        before = self.asked_python
        answer = await ask(channel, data, **options)
        assert answer.code is grpc.StatusCode.OK, answer
        assert self.asked_python == before + 1
        return answer

    def link(
        self, *, slots: int = SLOTS, shares: Sequence[TenantShare] | None = None, automatic: bool = True
    ) -> ScriptedEngine:
        """A new engine takes the queries from now on."""
        self.engine.scripted = ScriptedEngine(self.threads, slots, shares, automatic=automatic)
        self.scripted.link.use()
        self.threads.set_open(True)
        return self.scripted

    async def settle(self) -> None:
        """Return when an I/O thread has read the ends so far: the answer to a query of tenant two follows them.

        There is a plan for it, and the test ends queries.
        """
        asked = asyncio.create_task(ask(self.channel(), encoded(model="two")))
        self.scripted.end(await self.scripted.next())
        assert (await asked).code is grpc.StatusCode.OK

    def outcomes(self, tenant: str = "sums") -> dict[str, int]:
        """How often requests ended so, without those that never did."""
        self.threads.drain_counts()
        return {name: count for name, count in self.service.metrics.tenants[tenant].outcomes.items() if count}


def new_threads(count: int, limits: LimitsConfig = LIMITS) -> IoThreads:
    return IoThreads(
        count,
        infer_path=INFER,
        tenant_header=TENANT_HEADER,
        max_message_bytes=LIMIT + MESSAGE_SLACK_BYTES,
        max_body_bytes=LIMIT,
        limits=limits,
        hosts=("localhost", "a"),
    )


@asynccontextmanager
async def fronts(
    *,
    threads: int = 1,
    slots: int = SLOTS,
    automatic: bool = True,
    limits: LimitsConfig = LIMITS,
    clients: Sequence[ClientConfig] = (),
) -> Any:
    tenants = {
        "sums": served("sums", MANIFEST, QoSTarget(7_000_000)),
        "one": served("one", replace(MANIFEST, model="shared"), QoSTarget(9_000_000)),
        "two": served("two", replace(MANIFEST, model="shared"), QoSTarget(9_000_000)),
        "words": served("words", WORDS, QoSTarget(9_000_000)),
    }
    engine = LinkedNumpyEngine(tenants)
    metrics = Metrics({name: (t.manifest.model, t.qos) for name, t in tenants.items()})
    service = InferenceService(engine, metrics, LIMIT, shared_memory=True)
    io = new_threads(threads, limits)
    access = Access(clients)
    io.name_callers(access.names_callers)
    native = await GrpcFront.start(service, "127.0.0.1:0", PlanLearner(io, engine, service.regions, access), access)
    python = await GrpcFront.start(service, "127.0.0.1:0", None, access)
    made = Fronts(io, engine, service, access, native, python)
    made.link(slots=slots, automatic=automatic)
    try:
        yield made
    finally:
        for channel in made.channels:
            await channel.close()
        await native.stop(0)
        await python.stop(0)
        if engine.scripted is not None:
            engine.scripted.leave("")
            engine.scripted = None  # FastAPI remembers the latest applications, and with them this engine
        await service.close()


def run_in(opened: AbstractAsyncContextManager[Any], test: Callable[[Any], Awaitable[None]]) -> None:
    """Run the test with what is opened, in an event loop of its own."""

    async def main() -> None:
        async with asyncio.timeout(WAIT_S), opened as made:
            await test(made)

    uvloop.run(main())


def run(test: Callable[[Fronts], Awaitable[None]], **options: Any) -> None:
    run_in(fronts(**options), test)


X = [[1.0, 2.0, 3.0, 4.0]]
IDS = [[5, 99]]


def request(
    x: Any = X, ids: Any = IDS, *, model: str = "sums", outputs: Sequence[str] = (), **fields: Any
) -> pb.ModelInferRequest:
    """A request with raw tensors; `fields` as in JSON."""
    tensors = {"x": np.array(x, np.float32), "ids": np.array(ids, np.int64)}
    message = ParseDict(fields, pb.ModelInferRequest(model_name=model))
    for (name, values), datatype in zip(tensors.items(), ("FP32", "INT64"), strict=True):
        message.inputs.add(name=name, datatype=datatype, shape=values.shape)
        message.raw_input_contents.append(values.tobytes())
    for name in outputs:
        message.outputs.add(name=name)
    return message


def encoded(*args: Any, **fields: Any) -> bytes:
    data: bytes = request(*args, **fields).SerializeToString()
    return data
