"""`DeadlineRequestRouter`: Ray's proxies and handles send each query where it will be in time.

Ray copies this module to where routers run, so what has state or is long stands in `deadline_choice`.
"""

from __future__ import annotations

import logging
import time
from random import Random
from typing import Any

from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from veltair.ray.deadline_choice import DeadlineChoice

HEAD_BYTES = 2048  # of a request as Ray has serialised it, in which its model's name is looked for
MOST_COUNTED = 1 << 14
TENANT_METADATA = "veltair-tenant"


class DeadlineRequestRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]  # Ray's types are not looked at
    """The replica with the most headroom first, less the SLO debt that the query's tenant has there; if that one's
    queue is full, the next one. Replicas report both; where none does, two random ones are offered, of which Ray takes
    the one with the shorter queue.

    It fails as reports age: they come through Ray's controller, several times a second at best.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        self._rng = Random()
        self._choice = DeadlineChoice(self._rng)
        self._complained: set[str] = set()
        self._counted: dict[str, str] = {}  # by request: the replica for which it is counted already

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take over what replicas report; called whenever one does."""
        super().update_replicas(replicas)
        self._by_name = {replica.replica_id.unique_id: replica for replica in replicas}
        self._silent = self._choice.update({name: each.routing_stats for name, each in self._by_name.items()})

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of one replica each, those that report nothing in the last one."""
        offered = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        tenant, now_ns = self._tenant(pending_request), time.time_ns()
        order = self._choice.rank(tenant, now_ns)
        if pending_request is not None and order:  # at once: others are routed before this one is sent
            self._count(pending_request.metadata.internal_request_id, order[0], tenant, now_ns)
        ranks = [[offered[name]] for name in order if name in offered]
        silent = [offered[name] for name in self._silent if name in offered]
        if silent and not ranks:
            self._complain()
        return [*ranks, self._rng.sample(silent, min(2, len(silent)))]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """It may have gone elsewhere: then the first choice is wrong about it until its next report."""
        request, replica = pending_request.metadata.internal_request_id, replica_id.unique_id
        if self._counted.pop(request, replica) != replica:
            self._choice.send(replica, self._tenant(pending_request), time.time_ns())

    def _count(self, request: str, replica: str, tenant: str | None, now_ns: int) -> None:
        if request in self._counted:
            return
        if len(self._counted) >= MOST_COUNTED:  # of requests that were given up before they were sent
            self._counted.clear()
        self._counted[request] = replica
        self._choice.send(replica, tenant, now_ns)

    def _tenant(self, request: PendingRequest | None) -> str | None:
        """The tenant whose query it is, from its metadata or the beginning of its bytes."""
        if request is None or not request.args:
            return None
        context = request.metadata.grpc_context
        for key, value in () if context is None else context.invocation_metadata():
            if key == TENANT_METADATA:
                return str(value)
        first = request.args[0]
        return self._choice.tenant_in(first[:HEAD_BYTES]) if isinstance(first, bytes) else None

    def _complain(self) -> None:
        new = set(self._silent) - self._complained
        if new:
            self._complained |= new
            text = "no replica of %s reports its headroom (%s); queries go by the lengths of queues"
            logging.getLogger("ray.serve").warning(text, self._deployment_id.name, ", ".join(sorted(new)))
