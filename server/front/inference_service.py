"""`InferenceService`: an inference request on its way through the front. HTTP and gRPC share it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from veltair.errors import UnknownModelError, UnsupportedError, VeltairError
from veltair.profiles.artifact.strings import Strings
from veltair.server.access.callers import caller
from veltair.server.front import model_metadata
from veltair.server.front.admission import as_counted, earliest_deadline, refuse_past_deadline
from veltair.server.front.http_body import BodyMemory
from veltair.server.front.logs.access_log import AccessLog
from veltair.server.front.metrics import NO_COUNTS, Metrics
from veltair.server.front.query_result import QueryResult, trace_parameters, wants_trace
from veltair.server.front.request_counts import RequestCounts, outcome_of_error
from veltair.server.front.shared_memory_regions import SharedMemoryRegions
from veltair.server.front.snapshot import Snapshot
from veltair.server.front.tracing.query_trace import QueryTrace
from veltair.server.front.tracing.query_traces import QueryTraces
from veltair.server.front.tracing.trace_context import TraceContext
from veltair.server.ipc.stages import STAGES, stage_times
from veltair.server.protocol.compressed_body import Unpacker
from veltair.server.protocol.datatypes import Array, Tensor
from veltair.server.protocol.failed_queries import log_failed_query
from veltair.server.protocol.infer_request import InferRequest, Parameter, TensorLocation
from veltair.server.protocol.json_parser import JsonParser
from veltair.server.protocol.validation import (
    InputValidator,
    batch_size,
    priority_level,
    text_parameter,
    validate_outputs,
    warn_of_unknown,
)
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.model_control import ModelControl
from veltair.server.repository.model_memory import ModelMemory
from veltair.server.repository.served_tenant import ServedTenant
from veltair.types import DEFAULT_PRIORITY_LEVEL

TENANT_HEADER = "veltair-tenant"  # HTTP header and gRPC metadata; the parameter `tenant` does the same


class InferenceEngine(Protocol):
    """What runs the queries: `EngineClient`, or a peer's engine in `bench/`.

    ::

        result = await engine.infer(engine.models.resolve("mlp"), {"x": x}, deadline_ns=None)
    """

    @property
    def models(self) -> LiveModels: ...

    @property
    def ready(self) -> bool: ...

    async def infer(
        self,
        tenant: ServedTenant,
        inputs: Mapping[str, Tensor],
        *,
        deadline_ns: int | None = None,
        priority_level: int = DEFAULT_PRIORITY_LEVEL,
        traced: bool = False,
    ) -> QueryResult: ...

    async def snapshot(self, since: int | None = None) -> Snapshot: ...


@dataclass(frozen=True, slots=True)
class InferenceResponse:
    """What the client gets, before it is encoded.

    ::

        InferenceResponse(served, outputs={}, stored={}, parameters={"queue_ns": 3000})
    """

    served: ServedTenant
    outputs: dict[str, Array]  # the requested ones, in the requested order
    stored: dict[str, TensorLocation]  # the outputs that were written to the client's shared memory
    parameters: dict[str, Parameter]
    stage_ns: tuple[int, ...] = (0,) * len(STAGES)  # how long each took
    trace: QueryTrace | None = None  # up to its encoding


class InferenceService:
    """Finds the tenant of a request, validates its inputs, runs it and counts its end.

    ::

        service = InferenceService(engine, metrics, body_limit_bytes=64 << 20)
        response = await service.infer("mlp", "", request, arrival_ns=time.monotonic_ns())
    """

    def __init__(
        self,
        engine: InferenceEngine,
        metrics: Metrics,
        body_limit_bytes: int,
        *,
        memory_bytes: int = 1 << 30,
        shared_memory: bool = False,
        control: ModelControl | None = None,
        model_control: bool = False,
    ) -> None:
        """`memory_bytes`: of bodies on their way, and of what they unpack to. `shared_memory`: whether clients may name
        it for their tensors. `control`: what changes the models; `model_control`: whether clients may use it.
        """
        self.engine, self.metrics = engine, metrics
        self.body_limit_bytes = body_limit_bytes
        self.regions = SharedMemoryRegions(body_limit_bytes, allowed=shared_memory)
        self.parser = JsonParser()
        self.bodies = BodyMemory(max(memory_bytes, body_limit_bytes))
        self.unpacker = Unpacker(max(memory_bytes, body_limit_bytes))
        self.version = installed_version("veltair")
        self.access_log: AccessLog | None = None
        self.traces: QueryTraces | None = None
        self.control, self._model_control = control, model_control
        self._validators: WeakKeyDictionary[ServedTenant, InputValidator] = WeakKeyDictionary()

    async def infer(
        self,
        model: str,
        version: str,
        request: InferRequest,
        *,
        arrival_ns: int,
        tenant: str = "",
        deadline_ns: int | None = None,
        trace: TraceContext | None = None,
    ) -> InferenceResponse:
        """Raises RequestError for the client's faults and QueryError for the server's; each is counted once."""
        try:
            resolve = partial(self.resolve, model, version, tenant or text_parameter(request.parameters, "tenant"))
            served = resolve()
        except UnknownModelError as error:
            self.metrics.unknown_model_requests += 1
            if self.access_log is not None:
                self.access_log.add_error(request.id, None, model, error, time.monotonic_ns() - arrival_ns)
            raise
        counts = self.metrics.tenants[served.name]
        try:
            response = await self._infer(served, counts, request, arrival_ns, deadline_ns, resolve, trace)
        except BaseException as raised:
            duration_ns = time.monotonic_ns() - arrival_ns
            ended = as_counted(raised, request.parameters, arrival_ns, deadline_ns, arrival_ns + duration_ns)
            counts.count_error(ended, duration_ns, served.version)
            if self.access_log is not None:
                self.access_log.add_error(request.id, served.name, counts.model, ended, duration_ns)
            if self.traces is not None and trace is not None:
                self.traces.add_error(trace, served.name, request.id, ended, arrival_ns)
            if outcome_of_error(ended) == "failed":
                log_failed_query(getattr(ended, "query", None), served.name, request.id, str(ended))
            raise
        if self.access_log is not None:
            self.access_log.add_answer(request.id, response.served.name, response.stage_ns)
        return response

    async def _infer(
        self,
        served: ServedTenant,
        counts: RequestCounts,
        request: InferRequest,
        arrival_ns: int,
        deadline_ns: int | None,
        resolve: Callable[[], ServedTenant],
        trace: TraceContext | None,
    ) -> InferenceResponse:
        inputs, wanted = self._validate(served, request)
        locations = {output.name: output.location for output in request.outputs if output.location is not None}
        self.regions.check_outputs(locations)
        level = priority_level(request.parameters)
        deadline_ns = earliest_deadline(request.parameters, arrival_ns, deadline_ns)
        refuse_past_deadline(deadline_ns, time.monotonic_ns())
        traced = wants_trace(request.parameters)
        how: dict[str, Any] = {"priority_level": level, "traced": traced or trace is not None}
        async with self._in_memory(served, inputs, resolve, deadline_ns) as present:
            if present.artifact.digest != served.artifact.digest:  # another version by now
                inputs, wanted = self._validate(present, request)
            served = present
            result = await self.engine.infer(served, inputs, deadline_ns=deadline_ns, **how)
        outputs = {output: result.outputs[output] for output in wanted}
        stored = self.regions.write_outputs(outputs, locations)
        batch = batch_size(served.manifest.inputs, inputs)
        stages = stage_times(
            arrival_ns, result.submitted_ns, result.stamps, result.execute_ns, answered_ns=time.monotonic_ns()
        )
        counts.count_answer(stages, batch, served.version)
        parameters = warn_of_unknown(request.parameters)
        if traced:
            parameters |= trace_parameters(result, stages, level, served.priority)
        begun = None
        if trace is not None:
            own = trace, served.name, counts.model, request.id, "ok", arrival_ns, arrival_ns + sum(stages)
            begun = QueryTrace(*own, stage_ns=stages, blocks=result.blocks)
        return InferenceResponse(served, outputs, stored, parameters, stages, begun)

    def encoded(self, response: InferenceResponse) -> None:
        """The response to a request is ready for its socket."""
        if self.traces is not None and response.trace is not None:
            self.traces.add(response.trace._replace(end_ns=time.monotonic_ns()))

    @asynccontextmanager
    async def _in_memory(
        self,
        served: ServedTenant,
        inputs: Mapping[str, Tensor],
        resolve: Callable[[], ServedTenant],
        deadline_ns: int | None,
    ) -> AsyncIterator[ServedTenant]:
        """What is served as `resolve` says, once it is in memory, and for as long as the `with` lasts."""
        if self.control is None or not self.control.room.bounded:
            yield served
            return
        with self.bodies.hold() as hold:
            if not served.resident:  # nothing else bounds the memory of queries that wait for a model
                hold(sum(_size(tensor) for tensor in inputs.values()))
            async with self.control.residency.use(resolve, deadline_ns) as present:
                yield present

    def _validate(self, served: ServedTenant, request: InferRequest) -> tuple[dict[str, Tensor], Sequence[str]]:
        """The inputs, and the names of the outputs that are asked for. Raises RequestError."""
        inputs = self._validator(served).validate(self.regions.read_inputs(request.inputs))
        return inputs, validate_outputs(served.name, served.manifest.outputs, request.outputs)

    def _validator(self, served: ServedTenant) -> InputValidator:
        if (validator := self._validators.get(served)) is None:
            validator = self._validators[served] = InputValidator.of(served.name, served.manifest)
        return validator

    def resolve(self, model: str, version: str = "", tenant: str = "") -> ServedTenant:
        """What a request is for. Raises UnknownModelError."""
        return self.engine.models.resolve(model, version, tenant, caller.get().sees)

    def server_metadata(self) -> Mapping[str, Any]:
        return model_metadata.server_metadata(self.version, shared_memory=self.regions.allowed)

    def model_metadata(self, model: str, version: str = "") -> dict[str, Any]:
        served = self.resolve(model, version)
        versions = [version] if version else self.engine.models.versions(served.name)
        return model_metadata.model_metadata(served.name, versions, served.manifest)

    def model_configuration(self, model: str, version: str = "") -> dict[str, Any]:
        served = self.resolve(model, version)
        versions = self.engine.models.versions(served.name)
        return model_metadata.model_configuration(served.name, versions, served.manifest, served.qos)

    async def statistics(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Statistics of each version that is served, of one model or of all, or of one version. While there is no
        engine, executions are those that it told of last."""
        name, sees = self.resolve(model, version).name if model else "", caller.get().sees
        every = [each for each in self.engine.models.all() if sees(each.name) and name in ("", each.name)]
        served = [self.resolve(model, version)] if model and version else every
        memory = {}
        with suppress(VeltairError):
            snapshot = await self.engine.snapshot()
            self.metrics.follow(snapshot)
            memory = {(each.tenant, each.version): each for each in snapshot.memory}
        self.metrics.refresh()
        return {"model_stats": [self._statistics_of(each, memory.get(each.key)) for each in served]}

    def _statistics_of(self, served: ServedTenant, memory: ModelMemory | None) -> dict[str, Any]:
        name, version = served.key
        told = self.metrics.engines.tenants.get(name, NO_COUNTS).executions.get(version, {})
        counts = self.metrics.tenants[name].versions[version]
        return model_metadata.model_statistics(name, version, counts, told, memory)

    def repository_index(self, *, ready_alone: bool = False) -> list[dict[str, str]]:
        if self.control is not None:
            rows = self.control.index(self.engine.ready)
        else:
            rows = model_metadata.repository_index(self.engine.models.all(), self.engine.ready)
        seen = [row for row in rows if caller.get().sees(row["name"])]
        return [row for row in seen if row["state"] == "READY"] if ready_alone else seen

    def require_control(self, what: str) -> ModelControl:
        """Raises UnsupportedError where clients may not change what is served; `what` does not happen then."""
        if self.control is None or not self._model_control:
            raise UnsupportedError(f"model repository control is off (server.model_control); {what}")
        return self.control

    async def close(self) -> None:
        self.regions.close()
        await self.parser.close()


def _size(tensor: Tensor) -> int:
    return tensor.data.nbytes + tensor.offsets.nbytes if isinstance(tensor, Strings) else tensor.nbytes
