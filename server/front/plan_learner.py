"""`PlanLearner`: writes down what a request became, so that the I/O threads do the next one with its head alone."""

from __future__ import annotations

from typing import Any, Protocol

from veltair.errors import RequestError
from veltair.server.front.served_tenant import ServedTenant
from veltair.server.front.shared_memory_regions import SharedMemoryRegions
from veltair.server.protocol.grpc_codec import GrpcRequest
from veltair.server.protocol.infer_request import InferRequest, TensorLocation
from veltair.server.wire.io_threads import IoThreads
from veltair.server.wire.plan import FileRange, SlotViews, make_plan


class HasSlots(Protocol):
    """What serves the queries: `EngineClient`."""

    def slot_views(self, tenant: str, batch: int) -> tuple[int, SlotViews] | None: ...


class PlanLearner:
    """Adds a plan for each head that was answered.

    ::

        learner = PlanLearner(threads, engine, regions)
        learner.learn(grpc_request, "", request, served, response)
    """

    def __init__(self, threads: IoThreads, engine: HasSlots, regions: SharedMemoryRegions) -> None:
        self.threads, self._engine, self._regions = threads, engine, regions
        regions.on_unregister = threads.clear_plans

    def learn(
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
        manifest = served.manifest
        batched = next((port.name for port in manifest.inputs if port.shape[:1] == (-1,)), None)
        batch = next((tensor.shape[0] for tensor in request.inputs if tensor.name == batched), 1)
        found = self._engine.slot_views(served.name, batch)
        if found is None:
            return
        tenant, views = found
        located = [tensor.data for tensor in request.inputs] + [output.location for output in request.outputs]
        try:
            files = {
                place: FileRange(*self._regions.file_and_offset("", place))
                for place in located
                if isinstance(place, TensorLocation)
            }
        except RequestError:  # unregistered meanwhile
            return
        plan = make_plan(request, response, tenant=tenant, batch=batch, manifest=manifest, views=views, files=files)
        if plan is not None:
            self.threads.add_plan(received.data, tenant_header, plan)
