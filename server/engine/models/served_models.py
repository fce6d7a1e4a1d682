"""`ServedModels`: the models that queries may be for, as scheduler and counters have them."""

from __future__ import annotations

import time
from collections.abc import Callable

from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.scheduler.event_log.header import digest_profiles
from veltair.scheduler.events import Event, TenantAdded, TenantRemoved
from veltair.scheduler.scheduler import Scheduler
from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.models.tenants import added_tenant
from veltair.server.ipc.messages import TenantSpec


class ServedModels:
    """Adds and removes models, each when no query of it is there.

    ::

        served.add(spec, artifact)
        served.is_idle(spec.number)  # True
        served.remove(spec.number)
    """

    def __init__(
        self,
        specs: dict[int, TenantSpec],
        scheduler: Scheduler,
        arrivals: Arrivals,
        queries: InFlightQueries,
        decide: Callable[[Event], None],
    ) -> None:
        """`specs`: by number, kept up to date for all who read them. `decide`: has the scheduler handle an event."""
        self.specs = specs
        self._scheduler, self._decide = scheduler, decide
        self._arrivals, self._queries = arrivals, queries

    def is_idle(self, number: int) -> bool:
        """Whether no query of it is left."""
        return not self._arrivals.waiting(number) and not self._queries.has_any_of(number)

    def add(self, spec: TenantSpec, artifact: Artifact) -> None:
        """Queries of it may come. Raises ProfileError, and adds nothing then."""
        costs, profiles = self._scheduler.state.costs, artifact.profiles()
        tenant = added_tenant(spec, artifact, {model: by_batch[0].profile.digest for model, by_batch in costs.items()})
        if tenant.model not in costs:
            self._scheduler.learn_model(tenant.model, profiles)
        self.specs[spec.number] = spec
        self._queries.count(spec)
        self._decide(TenantAdded(time.monotonic_ns(), tenant, spec.artifact, digest_profiles(profiles)))

    def remove(self, number: int) -> None:
        """No more queries of it come."""
        spec = self.specs.pop(number)
        self._decide(TenantRemoved(time.monotonic_ns(), spec.key))
