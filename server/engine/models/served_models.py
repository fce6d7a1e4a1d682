"""`ServedModels`: the models that queries may be for, as scheduler and counters have them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from veltair.profiles.artifact.artifact_folder import CheckedArtifact
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.event_log.header import digest_profiles
from veltair.scheduler.events import Event, TenantAdded, TenantRemoved
from veltair.scheduler.scheduler import Scheduler
from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.models.tenants import added_tenant
from veltair.server.ipc.messages import TenantSpec
from veltair.types import Tenant


class PreparedModel:
    """A model that is to be added.

    ::

        prepared = served.prepare(spec, artifact)
        while not prepared.make_some():
            …  # something else
        served.add(prepared)
    """

    def __init__(self, spec: TenantSpec, tenant: Tenant, profiles: str, tables: Iterator[ProfileCosts]) -> None:
        """`profiles`: their digest. `tables`: what the scheduler learns of the model, not made yet."""
        self.spec, self.tenant, self.profiles = spec, tenant, profiles
        self.tables: list[ProfileCosts] = []
        self._left = tables

    def make_some(self) -> bool:
        """Make one more table: the engine has other things to do besides. Returns whether all are made."""
        if (table := next(self._left, None)) is not None:
            self.tables.append(table)
        return table is None


class ServedModels:
    """Adds and removes models, each when no query of it is there.

    ::

        served.add(prepared)
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

    def prepare(self, spec: TenantSpec, artifact: CheckedArtifact) -> PreparedModel:
        """What the scheduler needs of a model, to be made bit by bit. Raises ProfileError."""
        costs, profiles = self._scheduler.state.costs, artifact.profiles()
        tenant = added_tenant(spec, artifact, {model: by_batch[0].profile.digest for model, by_batch in costs.items()})
        tables = iter(()) if tenant.model in costs else self._scheduler.prepare_model(tenant.model, profiles)
        return PreparedModel(spec, tenant, digest_profiles(profiles), tables)

    def add(self, prepared: PreparedModel) -> None:
        """Queries of it may come. Raises ConfigError, and adds nothing then."""
        spec, tenant = prepared.spec, prepared.tenant
        if tenant.model not in self._scheduler.state.costs:
            self._scheduler.learn_model(tenant.model, prepared.tables)
        self.specs[spec.number] = spec
        self._queries.count(spec)
        self._decide(TenantAdded(time.monotonic_ns(), tenant, spec.artifact, prepared.profiles))

    def remove(self, number: int) -> None:
        """No more queries of it come."""
        spec = self.specs.pop(number)
        self._decide(TenantRemoved(time.monotonic_ns(), spec.key))
