"""`InferenceService`: an inference request on its way through the front. HTTP and gRPC share it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from typing import Any, NoReturn, Protocol

import msgspec

from veltair.errors import UnknownModelError, UnsupportedError
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.front import model_metadata
from veltair.server.front.admission import refuse_past_deadline, resolve_tenant
from veltair.server.front.engine_connection import QueryResult
from veltair.server.front.http_body import BodyMemory
from veltair.server.front.metrics import Metrics
from veltair.server.front.request_counts import RequestCounts
from veltair.server.front.served_tenant import ServedTenant
from veltair.server.front.shared_memory_regions import SharedMemoryRegions
from veltair.server.front.snapshot import Snapshot
from veltair.server.ipc.stages import ANSWER, STAGES, stage_times
from veltair.server.protocol.datatypes import Array, Tensor
from veltair.server.protocol.infer_request import InferRequest, Parameter, TensorLocation
from veltair.server.protocol.json_parser import JsonParser
from veltair.server.protocol.validation import (
    InputValidator,
    batch_size,
    check_priority,
    text_parameter,
    timeout_ns,
    validate_outputs,
)

TENANT_HEADER = "veltair-tenant"  # HTTP header and gRPC metadata; the parameter `tenant` does the same
TRACE_PARAMETER = "veltair_trace"  # true: the response's parameters say how the query was served


class InferenceEngine(Protocol):
    """What runs the queries: `EngineClient`, or a peer's engine in `bench/`.

    ::

        result = await engine.infer("mlp", {"x": x}, deadline_ns=None)
    """

    @property
    def tenants(self) -> Mapping[str, ServedTenant]: ...

    @property
    def ready(self) -> bool: ...

    async def infer(
        self, tenant: str, inputs: Mapping[str, Tensor], *, deadline_ns: int | None = None, traced: bool = False
    ) -> QueryResult: ...

    async def snapshot(self, since: int | None = None) -> Snapshot: ...


@dataclass(frozen=True, slots=True)
class InferenceResponse:
    """What the client gets, before it is encoded.

    >>> InferenceResponse("mlp", outputs={}, stored={}, parameters={"queue_ns": 3000}).parameters
    {'queue_ns': 3000}
    """

    tenant: str
    outputs: dict[str, Array]  # the requested ones, in the requested order
    stored: dict[str, TensorLocation]  # the outputs that were written to the client's shared memory
    parameters: dict[str, Parameter]


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
    ) -> None:
        """`memory_bytes`: of bodies on their way. `shared_memory`: whether clients may name it for their tensors."""
        self.engine = engine
        self.metrics = metrics
        self.body_limit_bytes = body_limit_bytes
        self.regions = SharedMemoryRegions(body_limit_bytes, allowed=shared_memory)
        self.parser = JsonParser()
        self.bodies = BodyMemory(max(memory_bytes, body_limit_bytes))
        self.version = installed_version("veltair")
        self._validators: dict[str, tuple[Manifest, InputValidator]] = {}

    async def infer(
        self,
        model: str,
        version: str,
        request: InferRequest,
        *,
        arrival_ns: int,
        tenant: str = "",
        deadline_ns: int | None = None,
    ) -> InferenceResponse:
        """Raises RequestError for the client's faults and QueryError for the server's; each is counted once."""
        try:
            name = self.resolve_tenant(model, version, tenant or text_parameter(request.parameters, "tenant"))
        except UnknownModelError:
            self.metrics.unknown_model_requests += 1
            raise
        counts = self.metrics.tenants[name]
        try:
            return await self._infer(name, counts, request, arrival_ns, deadline_ns)
        except BaseException as error:
            counts.count_error(error, time.monotonic_ns() - arrival_ns)
            raise

    async def _infer(
        self, name: str, counts: RequestCounts, request: InferRequest, arrival_ns: int, deadline_ns: int | None
    ) -> InferenceResponse:
        manifest = self.engine.tenants[name].manifest
        inputs = self._validator(name, manifest).validate(self.regions.read_inputs(request.inputs))
        wanted = validate_outputs(name, manifest.outputs, request.outputs)
        locations = {output.name: output.location for output in request.outputs if output.location is not None}
        self.regions.check_outputs(locations)
        check_priority(request.parameters)
        timeout = timeout_ns(request.parameters)
        if timeout is not None:
            deadline_ns = min(arrival_ns + timeout, deadline_ns or arrival_ns + timeout)
        refuse_past_deadline(deadline_ns, time.monotonic_ns())
        traced = wants_trace(request.parameters)
        result = await self.engine.infer(name, inputs, deadline_ns=deadline_ns, traced=traced)
        outputs = {output: result.outputs[output] for output in wanted}
        stored = self.regions.write_outputs(outputs, locations)
        batch = batch_size(manifest.inputs, inputs)
        stages = stage_times(
            arrival_ns, result.submitted_ns, result.stamps, result.execute_ns, answered_ns=time.monotonic_ns()
        )
        counts.count_answer(stages, batch)
        return InferenceResponse(name, outputs, stored, _trace(result, stages) if traced else {})

    def _validator(self, name: str, manifest: Manifest) -> InputValidator:
        """The validator of a tenant's inputs, for the manifest that it has now."""
        known, validator = self._validators.get(name, (None, None))
        if validator is None or known is not manifest:
            validator = InputValidator(name, manifest.inputs, manifest.max_batch)
            self._validators[name] = (manifest, validator)
        return validator

    def resolve_tenant(self, model: str, version: str = "", tenant: str = "") -> str:
        """The name of the tenant that a request is for. Raises UnknownModelError."""
        return resolve_tenant(self.engine.tenants, model, version, tenant)

    def server_metadata(self) -> Mapping[str, Any]:
        return model_metadata.server_metadata(self.version, shared_memory=self.regions.allowed)

    def model_metadata(self, model: str, version: str = "") -> dict[str, Any]:
        name = self.resolve_tenant(model, version)
        return model_metadata.model_metadata(name, self.engine.tenants[name].manifest)

    def model_configuration(self, model: str, version: str = "") -> dict[str, Any]:
        tenant = self.engine.tenants[name := self.resolve_tenant(model, version)]
        return model_metadata.model_configuration(name, tenant.manifest, tenant.qos)

    def statistics(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Statistics of one model, or of all."""
        self.metrics.refresh()
        names = [self.resolve_tenant(model, version)] if model else list(self.engine.tenants)
        return {"model_stats": [model_metadata.model_statistics(name, self.metrics.tenants[name]) for name in names]}

    def repository_index(self) -> list[dict[str, str]]:
        return model_metadata.repository_index(list(self.engine.tenants), self.engine.ready)

    def refuse_model_control(self, model: str) -> NoReturn:
        """Models are not loaded or unloaded at run time: the configuration alone says what is served."""
        raise UnsupportedError(f"model repository control is off; {model!r:.80} is neither loaded nor unloaded")

    async def close(self) -> None:
        self.regions.close()
        await self.parser.close()


def wants_trace(parameters: Mapping[str, Parameter]) -> bool:
    return parameters.get(TRACE_PARAMETER) in (True, "true", 1)


def _trace(result: QueryResult, stages: Sequence[int]) -> dict[str, Parameter]:
    """All stages but the answer, which is under way."""
    blocks = [
        {
            "start": block.start,
            "stop": block.stop,
            "cores": len(block.cores),
            "versions": block.versions,
            "elapsed_ns": block.elapsed_ns,
            "queries": block.queries,
        }
        for block in result.blocks
    ]
    return {
        "queue_ns": result.queue_ns,
        **{f"{stage.name}_ns": taken for stage, taken in zip(STAGES[:ANSWER], stages, strict=False)},
        "blocks": msgspec.json.encode(blocks).decode(),
    }
