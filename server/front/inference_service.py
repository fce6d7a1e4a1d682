"""An inference request on its way through the front: resolve, validate, infer, count. Shared by HTTP and gRPC."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from typing import Any, NoReturn, Protocol

import msgspec

from veltair.errors import DeadlineError, UnknownModelError, UnsupportedError
from veltair.profiles.artifact.manifest import Manifest
from veltair.server.front.engine_client import Snapshot
from veltair.server.front.metrics import Metrics, TenantMetrics
from veltair.server.front.shared_memory_regions import Regions
from veltair.server.ipc.messages import BlockRecord
from veltair.server.ipc.tensor_pool import batch_of
from veltair.server.protocol import model_metadata
from veltair.server.protocol.json_parser import JsonParser
from veltair.server.protocol.requests import Array, InferRequest, Parameter, Place, Tensor
from veltair.server.protocol.validation import Inputs, checked_outputs, priority, text_parameter, timeout_ns
from veltair.types import QoSTarget

TENANT_HEADER = "veltair-tenant"  # HTTP header and gRPC metadata; the parameter `tenant` does the same
TRACE_PARAMETER = "veltair_trace"  # true: the answer's parameters tell how it was served


class TenantInfo(Protocol):
    @property
    def manifest(self) -> Manifest: ...
    @property
    def qos(self) -> QoSTarget: ...


class Answer(Protocol):
    @property
    def outputs(self) -> Mapping[str, Array]: ...
    @property
    def queue_ns(self) -> int: ...
    @property
    def execute_ns(self) -> int: ...
    @property
    def blocks(self) -> tuple[BlockRecord, ...]: ...


class Engine(Protocol):
    """What the front ends need of `EngineClient`."""

    @property
    def tenants(self) -> Mapping[str, TenantInfo]: ...

    @property
    def ready(self) -> bool: ...

    async def infer(self, tenant: str, inputs: Mapping[str, Tensor], *, deadline_ns: int | None = None) -> Answer: ...

    async def snapshot(self, since: int = 0) -> Snapshot: ...


@dataclass(frozen=True, slots=True)
class Result:
    tenant: str
    outputs: dict[str, Array]  # those asked for, in that order
    stored: dict[str, Place]  # of them, what went to shared memory
    parameters: dict[str, Parameter]


class Service:
    def __init__(self, engine: Engine, metrics: Metrics, body_limit_bytes: int, *, shared_memory: bool = False) -> None:
        self.engine = engine
        self.metrics = metrics
        self.body_limit_bytes = body_limit_bytes
        self.regions = Regions(body_limit_bytes, allowed=shared_memory)
        self.parser = JsonParser()
        self.version = installed_version("veltair")
        self._known: dict[str, tuple[Manifest, Inputs]] = {}

    def tenant_of(self, model: str, version: str = "", tenant: str = "") -> str:
        """The tenant that a request is for; `model` is a tenant's name, or that of the model it serves.

        Raises UnknownModelError.
        """
        tenants = self.engine.tenants
        if version not in ("", model_metadata.VERSION):
            raise UnknownModelError(
                f"model {model!r:.80} has no version {version!r:.20}; it has {model_metadata.VERSION}"
            )
        if tenant:
            if tenant in tenants and model in (tenant, tenants[tenant].manifest.model):
                return tenant
            raise UnknownModelError(f"no tenant {tenant!r:.80} serves model {model!r:.80}")
        if model in tenants:
            return model
        serving = [name for name, info in tenants.items() if info.manifest.model == model]
        if len(serving) == 1:
            return serving[0]
        if serving:
            raise UnknownModelError(f"model {model!r} is served for {', '.join(serving)}; name one as the tenant")
        raise UnknownModelError(f"unknown model {model!r:.80}; served are {', '.join(tenants)}")

    async def infer(
        self,
        model: str,
        version: str,
        request: InferRequest,
        *,
        arrival_ns: int,
        tenant: str = "",
        deadline_ns: int | None = None,
    ) -> Result:
        """Raises RequestError for the request's faults and QueryError for ours; each is counted once."""
        try:
            name = self.tenant_of(model, version, tenant or text_parameter(request.parameters, "tenant"))
        except UnknownModelError:
            self.metrics.strangers += 1
            raise
        counts = self.metrics.tenants[name]
        try:
            return await self._infer(name, counts, request, arrival_ns, deadline_ns)
        except BaseException as error:
            counts.ended(error, time.monotonic_ns() - arrival_ns)
            raise

    async def _infer(
        self, name: str, counts: TenantMetrics, request: InferRequest, arrival_ns: int, deadline_ns: int | None
    ) -> Result:
        manifest = self.engine.tenants[name].manifest
        inputs = self._inputs(name, manifest).checked(self.regions.fetched(request.inputs))
        wanted = checked_outputs(name, manifest.outputs, request.outputs)
        places = {output.name: output.place for output in request.outputs if output.place is not None}
        self.regions.check(places)
        priority(request.parameters)
        timeout = timeout_ns(request.parameters)
        if timeout is not None:
            deadline_ns = min(arrival_ns + timeout, deadline_ns or arrival_ns + timeout)
        if deadline_ns is not None and deadline_ns <= time.monotonic_ns():
            raise DeadlineError("the deadline had passed when the request was read")
        answer = await self.engine.infer(name, inputs, deadline_ns=deadline_ns)
        outputs = {output: answer.outputs[output] for output in wanted}
        stored = self.regions.store(outputs, places)
        batch = batch_of(manifest, inputs)
        counts.answered(time.monotonic_ns() - arrival_ns, answer.queue_ns, answer.execute_ns, batch, answer.blocks)
        traced = request.parameters.get(TRACE_PARAMETER) in (True, "true", 1)
        return Result(name, outputs, stored, _trace(answer) if traced else {})

    def _inputs(self, name: str, manifest: Manifest) -> Inputs:
        """What a tenant's queries bring, by the manifest that it has now."""
        known, inputs = self._known.get(name, (None, None))
        if inputs is None or known is not manifest:
            inputs = Inputs(name, manifest.inputs, manifest.max_batch)
            self._known[name] = (manifest, inputs)
        return inputs

    def about(self) -> Mapping[str, Any]:
        return model_metadata.server(self.version, shared_memory=self.regions.allowed)

    def model_metadata(self, model: str, version: str = "") -> dict[str, Any]:
        name = self.tenant_of(model, version)
        return model_metadata.metadata(name, self.engine.tenants[name].manifest)

    def model_configuration(self, model: str, version: str = "") -> dict[str, Any]:
        info = self.engine.tenants[name := self.tenant_of(model, version)]
        return model_metadata.configuration(name, info.manifest, info.qos)

    def statistics(self, model: str = "", version: str = "") -> dict[str, Any]:
        """Of one model, or of all."""
        names = [self.tenant_of(model, version)] if model else list(self.engine.tenants)
        return {"model_stats": [model_metadata.statistics(name, self.metrics.tenants[name]) for name in names]}

    def index(self) -> list[dict[str, str]]:
        return model_metadata.index(list(self.engine.tenants), self.engine.ready)

    async def close(self) -> None:
        self.regions.close()
        await self.parser.close()

    def refuse_control(self, model: str) -> NoReturn:
        """Loading and unloading at run time: the configuration alone says what is served."""
        raise UnsupportedError(f"model repository control is off; {model!r:.80} is neither loaded nor unloaded")


def _trace(answer: Answer) -> dict[str, Parameter]:
    blocks = [
        {"start": b.start, "stop": b.stop, "cores": len(b.cores), "versions": b.versions, "elapsed_ns": b.elapsed_ns,
         "queries": b.queries}
        for b in answer.blocks
    ]  # fmt: skip
    return {
        "queue_ns": answer.queue_ns,
        "execute_ns": answer.execute_ns,
        "blocks": msgspec.json.encode(blocks).decode(),
    }
