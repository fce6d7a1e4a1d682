"""`PlanLearner`: writes down what a request became, so that the I/O threads do the next one with its head alone."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np

from veltair.errors import RequestError
from veltair.server.access.callers import Access, caller
from veltair.server.front.http_body import HttpRequest
from veltair.server.front.inference_service import InferenceResponse
from veltair.server.front.shared_memory_regions import SharedMemoryRegions
from veltair.server.protocol.grpc_codec import GrpcRequest
from veltair.server.protocol.http_codec import HttpBody
from veltair.server.protocol.infer_request import InferRequest, TensorLocation
from veltair.server.repository.served_tenant import ServedTenant
from veltair.server.wire.io_threads import IoThreads
from veltair.server.wire.plan import FileRange, Plan, SlotViews, make_plan
from veltair.server.wire.response_parts import ResponseParts, split_body, split_message


class HasSlots(Protocol):
    """What serves the queries: `EngineClient`."""

    def slot_views(self, served: ServedTenant, batch: int) -> tuple[int, SlotViews] | None: ...


class PlanLearner:
    """Adds a plan for each head that was answered.

    ::

        learner = PlanLearner(threads, engine, regions)
        learner.learn_grpc(grpc_request, "", request, served, response)
    """

    def __init__(
        self, threads: IoThreads, engine: HasSlots, regions: SharedMemoryRegions, access: Access | None = None
    ) -> None:
        self.threads, self._engine, self._regions = threads, engine, regions
        self._access = access or Access()
        regions.on_unregister = threads.clear_plans

    def learn_grpc(
        self, received: GrpcRequest, tenant_header: str, request: InferRequest, served: ServedTenant, response: Any
    ) -> None:
        """Does nothing for a request whose like has to be decoded each time.

        Args:
            received: as it came.
            tenant_header: its metadata that names a tenant.
            request: as it was decoded.
            served: the tenant that it was for.
            response: its answer.
        """
        plan = self._plan(request, served, split_message(response))
        if plan is not None:
            self.threads.add_grpc_plan(received.data, tenant_header, plan, caller.get().credentials)

    def learn_http(
        self,
        path: bytes,
        received: HttpRequest,
        tenant_header: str,
        served: ServedTenant,
        answer: InferenceResponse,
        encoded: HttpBody,
    ) -> None:
        """The same for a request over HTTP to this path, whose answer was encoded."""
        request, json = received.request, received.json
        if json is None or any(isinstance(tensor.data, list | np.ndarray) for tensor in request.inputs):
            return
        wanted = {output.name: output.binary for output in request.outputs}
        if not all(name in answer.stored or wanted.get(name, request.binary_output) for name in answer.outputs):
            return
        own_id, unique = self._own_id(json, request.id)
        if not unique:
            return
        plan = self._plan(request, served, split_body(encoded, own_id, answer.outputs))
        if plan is not None:
            self.threads.add_http_plan(path, json, tenant_header, plan, caller.get().credentials)

    def _own_id(self, json: bytes, request_id: str) -> tuple[str | None, bool]:
        """The id that is no part of the key of this JSON, None for none, and whether it is the only one there."""
        size = self.threads.id_bytes(json)
        if not size:
            return None, True
        return request_id, msgspec.json.decode(b"{" + json[size:], type=_Id).id is msgspec.UNSET

    def _plan(self, request: InferRequest, served: ServedTenant, response: ResponseParts) -> Plan | None:
        if not self._access.knows(caller.get()):  # the configuration was read again meanwhile
            return None
        manifest = served.manifest
        if not manifest.fixed_sizes:  # its next answer has others
            return None
        batched = next((port.name for port in manifest.inputs if port.shape[:1] == (-1,)), None)
        batch = next((tensor.shape[0] for tensor in request.inputs if tensor.name == batched), 1)
        found = self._engine.slot_views(served, batch)
        if found is None:
            return None
        tenant, views = found
        located = [tensor.data for tensor in request.inputs] + [output.location for output in request.outputs]
        try:
            files = {
                place: FileRange(*self._regions.file_and_offset("", place))
                for place in located
                if isinstance(place, TensorLocation)
            }
        except RequestError:  # unregistered meanwhile
            return None
        return make_plan(request, response, tenant=tenant, batch=batch, manifest=manifest, views=views, files=files)


class _Id(msgspec.Struct):
    id: str | msgspec.UnsetType = msgspec.UNSET
